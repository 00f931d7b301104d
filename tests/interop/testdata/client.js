// node client.js LIBRARY METHOD URL: a client by Node. LIBRARY: https, http2, undici. Prints
// 'begun' with the first bytes, and at the end one line of what came.
// FORM says of its body: declared, chunked or slow. PAUSE is how long it reads nothing. TIMES is how often. CHURN is how many
// watches come and go. BESIDE: a watch goes on, and others read nothing of 16 MB each.
const fs = require('fs'), crypto = require('crypto');
const [, , library, method, url] = process.argv;
const {CA, CERT, KEY, FORM, PAUSE, FIELDS, TIMES, EXPECT, CHURN, BESIDE} = process.env;
const tls = {ca: fs.readFileSync(CA), cert: fs.readFileSync(CERT), key: fs.readFileSync(KEY)};
const headers = JSON.parse(FIELDS || '{}'), whole = Buffer.alloc(1 << 20, 'y'), at = new URL(url);
const sleep = (ms) => new Promise((done) => setTimeout(done, ms));
if (FORM) headers['content-type'] = 'application/json';
if (FORM === 'declared' || FORM === 'slow') headers['content-length'] = whole.length;
if (EXPECT) headers.expect = '100-continue';

async function * parts() {
  for (let i = 0; i < 16; i++) {
    if (FORM === 'slow') await sleep(700);
    yield whole.subarray(i << 16, (i + 1) << 16);
  }
}
async function send(to) {
  if (FORM) for await (const part of parts()) if (!to.write(part)) await new Promise((done) => to.once('drain', done));
  to.end();
}
let told = false;
async function receive(status, body, continues = 0) {
  const hash = crypto.createHash('sha256');
  let bytes = 0, end = 'whole';
  try {
    for await (const chunk of body) {
      hash.update(chunk);
      bytes += chunk.length;
      if (told) continue;
      told = true;
      console.log('begun');
      if (PAUSE) await sleep(1000 * PAUSE);
    }
  } catch (err) {
    end = err.code || err.message;
  }
  return `${status} bytes=${bytes} sha=${hash.digest('hex').slice(0, 12)} continues=${continues} end=${end}`;
}
const agent = library === 'https' && new (require('https').Agent)({keepAlive: true, maxSockets: 1, ...tls});
const session = library === 'http2' && require('http2').connect(at.origin, tls);
if (session) session.on('error', (err) => console.log('session:', err.code)).on('goaway', (code) => console.log('goaway:', code));
const ask = {
  https: () => new Promise((done, fail) => {
    let continues = 0;
    const req = require('https').request(url, {agent, method, headers}, (res) => done(receive(res.statusCode, res, continues)));
    req.on('continue', () => { if (continues++ === 0) send(req); }).on('error', fail);
    if (EXPECT) req.flushHeaders(); else send(req).catch(() => {});
  }),
  http2: () => new Promise((done, fail) => {
    const req = session.request({':method': method, ':path': at.pathname + at.search, ...headers}, {endStream: !FORM});
    let continues = 0;
    req.on('continue', () => { if (continues++ === 0) send(req); }).on('response', (h) => done(receive(h[':status'], req, continues))).on('error', fail);
    if (FORM && !EXPECT) send(req).catch(() => {});
  }),
  undici: async () => {
    const undici = require('undici');
    const dispatcher = new undici.Agent({connect: tls, allowH2: false, bodyTimeout: 0, headersTimeout: 0});
    const res = await undici.request(url, {method, headers, dispatcher, body: FORM === 'declared' ? whole : FORM ? require('stream').Readable.from(parts()) : null});
    const line = await receive(res.statusCode, res.body);
    await dispatcher.close();
    return line;
  },
}[library];
async function churn() { // 200 watches come and go ten times, while another goes on
  const open = (until) => new Promise((done, fail) => {
    const req = session.request({':path': at.pathname + '?watch=1&for=' + until});
    req.on('error', fail);
    req.once('data', () => done(req));
  });
  const kept = session.request({':path': at.pathname + '?watch=1&for=40'});
  const over = receive(200, kept);
  for (let i = 0; i < 10; i++) {
    const all = await Promise.all(Array.from({length: Number(CHURN)}, () => open(300)));
    for (const one of all) one.on('error', () => {}).close(require('http2').constants.NGHTTP2_CANCEL);
    await Promise.all(all.map((one) => one.closed && one.destroyed ? null : new Promise((done) => one.once('close', done))));
  }
  return over;
}
async function beside() {
  const kept = session.request({':path': at.pathname + '?watch=1&for=10'});
  await new Promise((done) => kept.once('response', done));
  for (let i = 0; i < 8; i++) { // Fairlead has connections for each processor
    const req = require('http2').connect(at.origin, tls).request({':path': at.pathname + '?size=16000000'});
    await new Promise((done) => req.once('response', done).on('error', done)); // nobody reads it
  }
  await sleep(1000);
  return {over: receive(200, kept)};
}
(async () => {
  const lines = {}, kept = BESIDE && (await beside());
  const count = (line) => { lines[line] = (lines[line] || 0) + 1; };
  for (let i = 0; i < (TIMES || 1); i++) count(await (CHURN ? churn() : ask()).catch((err) => `failed: ${err.code || err.message}`));
  if (kept) count(await kept.over);
  for (const line in lines) console.log(`${lines[line]}x ${line}`);
  process.exit(0);
})();
