// node pages.js FOLDER NAME...: opens FOLDER/NAME.html in Chromium at three widths, light and dark. Fails where a
// page is wider than the screen, has an error, asks for another file, or shows a number that its result has not.
'use strict';
const path = require('path');
const {chromium} = require(process.env.PLAYWRIGHT_CORE || 'playwright-core');

const [, , folder, ...names] = process.argv;
const faults = [];

/** Runs in the page: what is shown beside what the result says. */
function look() {
  const kept = document.getElementById('result');
  const said = new Set();
  const collect = (value) => {
    if (typeof value === 'number') said.add(value);
    if (value && typeof value === 'object') Object.values(value).forEach(collect);
  };
  if (kept) collect(JSON.parse(kept.textContent));
  const shown = [...document.querySelectorAll('data')].map((one) => Number(one.value));
  const root = document.documentElement;
  const outside = [...document.querySelectorAll('body *')].filter((one) =>
    one.getBoundingClientRect().right > innerWidth + 1 && !one.closest('.wide, svg, #view'));
  return {
    wide: root.scrollWidth - innerWidth,
    outside: outside.slice(0, 3).map((one) => one.tagName + ' ' + one.textContent.slice(0, 40)),
    shown: shown.length,
    wrong: kept ? shown.filter((value) => !said.has(value)) : [],
    ink: getComputedStyle(document.body).color + ' on ' + getComputedStyle(document.body).backgroundColor,
  };
}

async function check(browser, name) {
  const inks = new Set();
  let shown = 0;
  for (const width of [360, 800, 1400]) {
    for (const colorScheme of ['light', 'dark']) {
      const where = `${name} at ${width}, ${colorScheme}`;
      const tab = await browser.newPage({viewport: {width, height: 900}, colorScheme});
      const fault = (text) => faults.push(`${where}: ${text}`);
      tab.on('console', (message) => message.type() === 'error' && fault(message.text()));
      tab.on('pageerror', (error) => fault(String(error)));
      tab.on('request', (request) =>
        request.url().endsWith(`/${name}.html`) || fault(`asks for ${request.url()}`));
      await tab.goto('file://' + path.resolve(folder, name + '.html'));
      const seen = await tab.evaluate(look);
      if (seen.wide > 0) fault(`${seen.wide} px too wide`);
      for (const text of seen.outside) fault(`beyond the screen: ${text}`);
      for (const value of seen.wrong.slice(0, 5)) fault(`shows ${value}, which the result has not`);
      if (name !== 'trace' && seen.shown === 0) fault('shows no number');
      if (name === 'trace') {  // the canvas takes clicks and keys
        await tab.mouse.click(width / 2, 240);
        for (const key of ['w', 'd', 's', 'a', '0']) await tab.keyboard.press(key);
      }
      shown = seen.shown;
      inks.add(seen.ink);
      await tab.screenshot({path: path.join(folder, `${name}-${width}-${colorScheme}.png`), fullPage: name !== 'trace'});
      await tab.close();
    }
  }
  if (inks.size !== 2) faults.push(`${name}: light and dark look alike (${[...inks].join('; ')})`);
  console.log(`${name}: ${shown} numbers`);
}

async function main() {
  const browser = await chromium.launch({
    executablePath: process.env.CHROMIUM || '/usr/bin/chromium',
    args: ['--no-sandbox', '--disable-gpu', '--disable-background-networking'],
  });
  try {
    for (const name of names) await check(browser, name);
  } finally {
    await browser.close();
  }
  for (const text of faults) console.log(text);
  process.exit(faults.length > 0 ? 1 : 0);
}

main().catch((error) => {
  console.error(String(error));
  process.exit(1);
});
