// node ws.js URL with CA, CERT and KEY: what a WebSocket client is told.
const fs = require('fs'), {CA, CERT, KEY} = process.env;
const ws = new (require('ws'))(process.argv[2], {ca: fs.readFileSync(CA), cert: fs.readFileSync(CERT), key: fs.readFileSync(KEY)});
ws.on('unexpected-response', (_, res) => { console.log(res.statusCode); process.exit(0); });
ws.on('open', () => console.log('open')).on('error', (err) => console.log(err.message));
ws.on('message', (text) => { console.log(JSON.parse(text).type); process.exit(0); });
