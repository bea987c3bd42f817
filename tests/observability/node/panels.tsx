// Draws panels of our dashboards with Grafana's own components: window.draw(panel, series, range).
import {
  applyFieldOverrides, createDataFrame, createTheme, dateTime, FieldType, ThemeContext,
  type DataFrame, type Field,
} from "@grafana/data";
import {BigValue, BigValueColorMode, BigValueGraphMode, GlobalStyles, PanelChrome, TimeSeries} from "@grafana/ui";
import {createRoot} from "react-dom/client";

type Panel = any;
type Series = {name: string; times: number[]; values: number[]};

const theme = createTheme({colors: {mode: "dark"}});
const CUSTOM = {
  drawStyle: "line", lineInterpolation: "linear", lineWidth: 2, pointSize: 4, axisPlacement: "auto",
};

function frameOf(panel: Panel, series: Series): DataFrame {
  const {custom, ...defaults} = panel.fieldConfig.defaults;
  // JSON has no infinity; Grafana puts it back when it loads a dashboard.
  for (const step of defaults.thresholds.steps) step.value ??= -Infinity;
  const config = {
    ...defaults, displayName: series.name,
    color: {mode: panel.type === "stat" ? "thresholds" : "palette-classic"},
    custom: {...CUSTOM, ...custom},
  };
  for (const {matcher, properties} of panel.fieldConfig.overrides) {
    const pattern = new RegExp(matcher.options.replace(/^\/|\/$/g, ""));
    if (!pattern.test(series.name)) continue;
    for (const {id, value} of properties) {
      if (id === "color") config.color = value;
      else config.custom[id.replace("custom.", "")] = value;
    }
  }
  return createDataFrame({
    fields: [
      {name: "Time", type: FieldType.time, values: series.times, config: {}},
      {name: series.name, type: FieldType.number, values: series.values, config},
    ],
  });
}

function drawn(panel: Panel, frames: DataFrame[], range: [number, number], w: number, h: number) {
  if (panel.type === "stat") {
    const value: Field = frames[0].fields[1];
    const last = value.display!(value.values[value.values.length - 1]);
    return <BigValue theme={theme} width={w} height={h} value={last}
      colorMode={BigValueColorMode.Background} graphMode={BigValueGraphMode.None} />;
  }
  const [from, to] = range.map((seconds) => dateTime(seconds * 1000));
  return <TimeSeries frames={frames} width={w} height={h} timeZone="utc" structureRev={1}
    timeRange={{from, to, raw: {from, to}}} legend={{calcs: [], ...panel.options.legend}} />;
}

(window as any).draw = (panel: Panel, series: Series[], range: [number, number]) => {
  const [width, height] = panel.type === "stat" ? [260, 140] : [720, 340];
  const data = applyFieldOverrides({
    data: series.map((one) => frameOf(panel, one)),
    fieldConfig: {defaults: {}, overrides: []},
    replaceVariables: (text: string) => text, theme, timeZone: "utc",
  });
  Object.assign(window, {
    size: [width, height], colours: data.map(({fields}) => fields[1].display!(0).color),
  });
  createRoot(document.getElementById("panel")!).render(
    <ThemeContext.Provider value={theme}>
      <GlobalStyles />
      <PanelChrome title={panel.title} width={width} height={height}>
        {(w: number, h: number) => drawn(panel, data, range, w, h)}
      </PanelChrome>
    </ThemeContext.Provider>
  );
};
