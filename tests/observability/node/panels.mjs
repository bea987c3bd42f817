// panels.mjs JOB.json: asks Prometheus as Grafana would, and takes a picture of every panel named.
//
// The job: {prometheus, start, chromium, sheet, panels: [{panel, file, variables, end}]}. `sheet` is
// the picture of all of them.
import {readFileSync} from "node:fs";
import {build} from "esbuild";
import {chromium} from "playwright-core";

const POINTS = 60;
const ORIGIN = "http://panels.localhost/";
const BODY = '<!doctype html><body style="margin:0;background:#111217;color:#ccccdc"><div id="panel"></div></body>';
const job = JSON.parse(readFileSync(process.argv[2], "utf8"));

function filledIn(expr, variables) {
  const values = {__rate_interval: "1m", ...variables};
  return expr.replace(/\$(\w+)/g, (_, name) => values[name] ?? ".*");
}

async function seriesOf(target, variables, end) {
  const query = new URLSearchParams({
    query: filledIn(target.expr, variables), start: job.start, end,
    step: (end - job.start) / POINTS,
  });
  const answer = await fetch(`${job.prometheus}/api/v1/query_range?${query}`);
  const {data} = await answer.json();
  return data.result.map(({metric, values}) => ({
    name: target.legendFormat.replace(/\{\{(\w+)\}\}/g, (_, label) => metric[label] ?? ""),
    times: values.map(([at]) => at * 1000),
    values: values.map(([, value]) => Number(value)),
  }));
}

const bundle = await build({
  entryPoints: ["panels.tsx"], bundle: true, write: false, outdir: "out", format: "iife",
  jsx: "automatic", define: {"process.env.NODE_ENV": '"production"'}, logLevel: "error",
  loader: {".svg": "dataurl", ".ttf": "dataurl", ".woff2": "dataurl"},
  absWorkingDir: import.meta.dirname,
});
const built = (kind) => bundle.outputFiles.find(({path}) => path.endsWith(kind)).text;
const browser = await chromium.launch({executablePath: job.chromium, args: ["--no-sandbox"]});
for (const {panel, file, variables, end} of job.panels) {
  const page = await browser.newPage({viewport: {width: 800, height: 420}, deviceScaleFactor: 2});
  const errors = [];
  page.on("pageerror", (error) => errors.push(String(error)));
  // Grafana's components want an origin with storage.
  await page.route(ORIGIN, (route) => route.fulfill({contentType: "text/html", body: BODY}));
  await page.goto(ORIGIN);
  await page.addStyleTag({content: built(".css")});
  await page.addScriptTag({content: built(".js")});
  const series = (await Promise.all(panel.targets.map((one) => seriesOf(one, variables, end)))).flat();
  if (errors.length) throw new Error(errors.join("\n"));
  await page.evaluate(([p, s, r]) => window.draw(p, s, r), [panel, series, [job.start, end]]);
  await page.waitForTimeout(800);
  const [width, height] = await page.evaluate(() => window.size);
  await page.screenshot({path: file, clip: {x: 0, y: 0, width, height}});
  const text = await page.locator("#panel").innerText();
  // Of each line: pixels in its colour, more or less.
  const inked = await page.evaluate(() => [...document.querySelectorAll("canvas")].flatMap((canvas) => {
    const {data} = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    return window.colours.map((colour) => {
      const [r, g, b] = [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
      let count = 0;
      for (let i = 0; i < data.length; i += 4) {
        const off = Math.abs(data[i] - r) + Math.abs(data[i + 1] - g) + Math.abs(data[i + 2] - b);
        count += data[i + 3] > 200 && off < 60;
      }
      return count;
    });
  }));
  console.log(JSON.stringify({title: panel.title, text, names: series.map(({name}) => name), inked, errors}));
  await page.close();
}
const images = job.panels.map(({file, panel}) =>
  `<img width="${panel.type === "stat" ? 260 : 720}" src="data:image/png;base64,${readFileSync(file, "base64")}">`);
const page = await browser.newPage({viewport: {width: 1480, height: 800}});
await page.setContent(
  `<body style="margin:0;background:#111217"><div style="display:flex;flex-wrap:wrap;gap:16px;padding:12px">${images.join("")}</div>`);
await page.locator("div").screenshot({path: job.sheet});
await browser.close();
