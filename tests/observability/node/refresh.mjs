// refresh.mjs URL CHROMIUM: says what is on top, then waits until another row is.
import {chromium} from "playwright-core";

const [url, executablePath] = process.argv.slice(2);
const browser = await chromium.launch({executablePath, args: ["--no-sandbox"]});
const page = await browser.newPage();
await page.goto(url);
const top = page.locator("#rows tr th").first();
const before = await top.innerText();
console.log(before);
await page.waitForFunction(
  (text) => document.querySelector("#rows tr th").innerText !== text, before, {timeout: 60_000},
);
console.log(await top.innerText(), await page.title());
await browser.close();
