"""client.py h1|h2 METHOD URL: a client by httpx, as client.js."""
import hashlib, os, sys, time
import json
import httpx

library, method, url = sys.argv[1:]
env = os.environ.get
form, whole = env("FORM", ""), b"y" * (1 << 20)
fields = {k: str(v) for k, v in json.loads(env("FIELDS") or "{}").items()}
if form:
    fields["content-type"] = "application/json"
if form in ("declared", "slow"):
    fields["content-length"] = str(len(whole))


def parts():
    for i in range(16):
        if form == "slow":
            time.sleep(0.7)
        yield whole[i << 16:(i + 1) << 16]


status, size, digest, end, told = 0, 0, hashlib.sha256(), "whole", False
with httpx.Client(http1=library == "h1", http2=library == "h2", verify=env("CA"), cert=(env("CERT"), env("KEY")), timeout=None) as client:
    try:
        with client.stream(method, url, headers=fields, content=parts() if form else None) as res:
            status = res.status_code
            for chunk in res.iter_raw():
                size += len(chunk)
                digest.update(chunk)
                if not told:
                    told = True
                    print("begun", flush=True)
                    time.sleep(float(env("PAUSE") or 0))
    except Exception as err:
        end = type(err).__name__ + ": " + str(err)
print(f"{status} bytes={size} sha={digest.hexdigest()[:12]} end={end}")
