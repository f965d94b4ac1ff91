// node catapult.js TRACE: imports a trace in Catapult, the viewer of chrome://tracing, and prints
// "slices=N flows=N nested=N warnings=N", then each warning. `nested` counts slices above 1 ns that the
// viewer put below another one: overlaps.
//
// Debian builds Chromium without its tracing page; the same viewer comes with Go's sources.
'use strict';
const fs = require('fs');
const http = require('http');
const path = require('path');
const {chromium} = require(process.env.PLAYWRIGHT_CORE || 'playwright-core');

const viewer = process.env.CATAPULT || '/usr/share/go-1.19/src/cmd/trace/static';
const trace = process.argv[2];

// Runs in the page once the viewer's elements are defined.
async function importTrace() {
  const text = await (await fetch('/trace')).text();
  const model = new tr.Model();
  const task = new tr.importer.Import(model, new tr.importer.ImportOptions());
  await task.importTracesWithProgressDialog([text]);
  const found = {slices: 0, flows: model.flowEvents.length, nested: 0, warnings: []};
  for (const warning of model.importWarnings) found.warnings.push(warning.message);
  for (const process of Object.values(model.processes)) {
    for (const thread of Object.values(process.threads)) {
      found.slices += thread.sliceGroup.length;
      for (const slice of thread.sliceGroup.slices) {
        if (!slice.isTopLevel && slice.duration > 1e-6) ++found.nested;
      }
    }
  }
  return found;
}

const page = `<!doctype html><meta charset="utf-8">
<script src="/viewer/webcomponents.min.js"></script>
<link rel="import" href="/viewer/trace_viewer_full.html">
<script>document.addEventListener('WebComponentsReady', () => { window.ready = true; });</script>`;

const server = http.createServer((request, response) => {
  if (request.url === '/trace') return fs.createReadStream(trace).pipe(response);
  if (request.url.startsWith('/viewer/')) {
    const file = path.join(viewer, path.basename(request.url));
    response.setHeader('content-type', file.endsWith('.js') ? 'text/javascript' : 'text/html');
    return fs.createReadStream(file).on('error', () => response.end()).pipe(response);
  }
  response.setHeader('content-type', 'text/html');
  response.end(request.url === '/' ? page : '');
});

async function main() {
  await new Promise((done) => server.listen(0, '127.0.0.1', done));
  const browser = await chromium.launch({
    executablePath: process.env.CHROMIUM || '/usr/bin/chromium',
    args: ['--no-sandbox', '--disable-gpu', '--disable-background-networking'],
  });
  try {
    const tab = await browser.newPage();
    await tab.goto(`http://127.0.0.1:${server.address().port}/`);
    await tab.waitForFunction(() => window.ready, null, {timeout: 60000});
    const found = await tab.evaluate(importTrace);
    console.log(`slices=${found.slices} flows=${found.flows} nested=${found.nested} ` +
                `warnings=${found.warnings.length}`);
    for (const warning of found.warnings.slice(0, 20)) console.log(warning);
  } finally {
    await browser.close();
    server.close();
  }
}

main().catch((error) => {
  console.error(String(error));
  process.exit(1);
});
