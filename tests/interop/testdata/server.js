// node server.js KIND PORT CERT KEY: an extension server by Node. KIND: http (plain), https, http2, http2-10mb.
const fs = require('fs');
const [, , kind, port, cert, key] = process.argv;
const serve = async (req, res) => {
  const query = new URL(req.url, 'https://x').searchParams;
  const later = () => new Promise((done) => setTimeout(done, 1000 * Number(query.get('for') ?? 0)));
  res.on('error', () => {});
  res.setHeader('content-type', 'application/json');
  if (req.method !== 'GET') {
    let bytes = 0;
    for await (const chunk of req) bytes += chunk.length;
    await later();
    res.statusCode = 201;
    res.end(JSON.stringify({bytes}));
  } else if (query.has('watch')) {
    res.write('{"n":1}\n');
    await later();
    res.end('{"n":2}\n');
  } else if (query.has('size')) {
    const body = Buffer.alloc(Number(query.get('size')), 'x');
    res.setHeader('content-length', body.length);
    res.end(body);
  } else {
    res.end(JSON.stringify({kind: 'APIResourceList', apiVersion: 'v1', groupVersion: req.url.slice(6).split('?')[0], resources: []}));
  }
};
const begun = (req, res) => serve(req, res).catch((err) => console.error(req.method, req.url, err.message));
// All clients of Fairlead share a session, whose bound is 10 MB: the many long lists of the table, at a time, are more.
const h2 = kind.startsWith('http2'), pair = cert && {cert: fs.readFileSync(cert), key: fs.readFileSync(key), allowHTTP1: h2, maxSessionMemory: kind === 'http2' ? 1000 : 10};
const server = h2 ? require('http2').createSecureServer(pair, begun) : kind === 'https' ? require('https').createServer(pair, begun) : require('http').createServer(begun);
server.on('session', () => console.error('begins a session')).listen(Number(port), '127.0.0.1');
