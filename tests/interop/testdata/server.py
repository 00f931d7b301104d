"""An extension server as a WSGI application (gunicorn) and as an ASGI one (hypercorn), which server.py "" PORT CERT KEY runs."""
import asyncio, json, sys, time
from urllib.parse import parse_qs


def discovery(path):
    return json.dumps({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": path[6:], "resources": []}).encode()


def wsgi(environ, start):
    query = parse_qs(environ["QUERY_STRING"])
    later = float(query.get("for", ["0"])[0])
    if environ["REQUEST_METHOD"] != "GET":
        size = 0
        while chunk := environ["wsgi.input"].read(65536):
            size += len(chunk)
        time.sleep(later)
        start("201 Created", [("Content-Type", "application/json")])
        return [json.dumps({"bytes": size}).encode()]
    start("200 OK", [("Content-Type", "application/json")])
    if "watch" in query:
        def events():
            yield b'{"n":1}\n'
            time.sleep(later)
            yield b'{"n":2}\n'
        return events()
    return [b"x" * int(query["size"][0])] if "size" in query else [discovery(environ["PATH_INFO"])]


async def asgi(scope, receive, send):
    if scope["type"] == "lifespan":
        while True:
            kind = (await receive())["type"]
            await send({"type": kind + ".complete"})
            if kind == "lifespan.shutdown":
                return
    if scope["type"] != "http":
        await send({"type": scope["type"] + ".close"})
        return
    query = parse_qs(scope["query_string"].decode())
    later, size, more = float(query.get("for", ["0"])[0]), 0, True
    while more:
        message = await receive()
        size += len(message.get("body", b""))
        more = message.get("more_body", False)
    head = {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]}
    if scope["method"] != "GET":
        await asyncio.sleep(later)
        await send(head | {"status": 201})
        body = json.dumps({"bytes": size}).encode()
    elif "watch" in query:
        await send(head)
        await send({"type": "http.response.body", "body": b'{"n":1}\n', "more_body": True})
        await asyncio.sleep(later)
        body = b'{"n":2}\n'
    else:
        await send(head)
        body = b"x" * int(query["size"][0]) if "size" in query else discovery(scope["path"])
    await send({"type": "http.response.body", "body": body})


if __name__ == "__main__":
    from hypercorn.asyncio import serve
    from hypercorn.config import Config
    config = Config()
    config.bind, config.certfile, config.keyfile = ["127.0.0.1:" + sys.argv[2]], sys.argv[3], sys.argv[4]
    asyncio.run(serve(asgi, config))
