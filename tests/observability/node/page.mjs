// page.mjs JOB.json: looks at the status page as a person, a keyboard and a screen reader would.
//
// The job: {url, chromium, views: [{file, theme, width}]}. A line of JSON for each view.
import {readFileSync} from "node:fs";
import {createRequire} from "node:module";
import {chromium} from "playwright-core";

const job = JSON.parse(readFileSync(process.argv[2], "utf8"));
const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");

// Text that reaches out of the block it belongs to, or out of the window.
function overflowing() {
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const owner = node.parentElement;
    if (!node.data.trim() || !owner.checkVisibility() || owner.closest("script, style")) continue;
    let block = owner;
    while (getComputedStyle(block).display === "inline") block = block.parentElement;
    const range = document.createRange();
    range.selectNodeContents(node);
    const [text, room] = [range.getBoundingClientRect(), block.getBoundingClientRect()];
    const scrolls = owner.closest(".scroll");
    if (text.left < room.left - 1 || text.right > room.right + 1 || text.bottom > room.bottom + 1
      || (!scrolls && text.right > innerWidth)) found.push(node.data.trim());
  }
  if (document.documentElement.scrollWidth > innerWidth) found.push("the page scrolls sideways");
  return found;
}

const browser = await chromium.launch({executablePath: job.chromium, args: ["--no-sandbox"]});
for (const {file, theme, width} of job.views) {
  const page = await browser.newPage({
    viewport: {width, height: 900}, colorScheme: theme, deviceScaleFactor: 1,
  });
  const complaints = [], asked = [];
  page.on("pageerror", (error) => complaints.push(String(error)));
  page.on("console", (line) => line.type() === "error" && complaints.push(line.text()));
  page.on("request", (request) => asked.push(request.url()));
  await page.goto(job.url);
  await page.screenshot({path: file});
  const rows = await page.locator("#rows tr").evaluateAll((all) => all.map((row) => row.innerText));
  const first = await page.locator("#rows tr").first().boundingBox();
  const ground = await page.evaluate(() => getComputedStyle(document.body).backgroundColor);
  const overflows = await page.evaluate(overflowing);
  const sideways = await page.locator(".scroll")
    .evaluate(({scrollWidth, clientWidth}) => scrollWidth - clientWidth);
  const focused = [];
  for (let i = 0; i < 7; i++) {
    await page.keyboard.press("Tab");
    focused.push(await page.evaluate(() =>
      document.activeElement.getAttribute("href") ?? document.activeElement.getAttribute("role")));
  }
  // By the debugger: the page's own policy lets no script in.
  await page.evaluate(axe);
  const {violations} = await page.evaluate(() => axe.run());
  const serious = violations.filter(({impact}) => ["serious", "critical"].includes(impact))
    .map(({id, nodes}) => `${id}: ${nodes[0].html}`);
  const outside = asked.filter((url) => !url.startsWith(job.url) && !url.startsWith("data:"));
  console.log(JSON.stringify({
    rows, first, ground, sideways, overflows, focused, serious, outside, complaints,
    all: violations.map(({id, impact}) => `${id} ${impact}`),
  }));
  await page.close();
}
await browser.close();
