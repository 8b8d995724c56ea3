// SPDX-License-Identifier: Apache-2.0
// The program that is written into a run's folder and does what is asked in the Python that has Modal's own client. It
// answers with one line of JSON. Names and limits are arguments; tokens stay in the environment or in Modal's own file.
#include "tool/remote/drivers/modal_app.h"

namespace attune {

const char* const kModalApp = R"py(# SPDX-License-Identifier: Apache-2.0
# Written by attune remote. One sandbox of Modal per lease: it has a name, a GPU and a time limit of the server's.
import base64
import json
import os
import sys

try:
    import modal
except ImportError:
    print(json.dumps({"error": "missing"}))
    sys.exit(0)

APP = "attune"
CHUNK = 1 << 20
NOT_FOUND = getattr(modal.exception, "NotFoundError", KeyError)
EXISTS = getattr(modal.exception, "AlreadyExistsError", NOT_FOUND)


def app():
    return modal.App.lookup(APP, create_if_missing=True)


def named(name):
    try:
        return modal.Sandbox.from_name(APP, name)
    except NOT_FOUND:
        return None


def check(_):
    app()
    return {}


def acquire(a):
    image = modal.Image.from_registry(a["image"], add_python="3.12") if a["image"] else modal.Image.debian_slim()
    there = named(a["name"])
    if there is None:
        more = {"idle_timeout": a["idle_s"]} if a["idle_s"] else {}
        gpu = a["gpu"] + (":" + str(a["gpus"]) if a["gpus"] > 1 else "")
        try:
            there = modal.Sandbox.create("sleep", str(a["seconds"]), app=app(), name=a["name"], image=image, gpu=gpu,
                                         timeout=a["seconds"], tags={"attune": a["name"]}, cpu=(1.0, 4.0),
                                         memory=(4096, 16384), **more)
        except EXISTS:
            there = named(a["name"])
    return {"id": there.object_id}


def life(a):
    there = named(a["name"])
    if there is None:
        return {"life": "gone"}
    code = there.poll()
    if code is not None:
        return {"life": "gone", "why": "exit code " + str(code)}
    if a["probe"]:
        there.exec("true", timeout=10).wait()
    return {"life": "ready"}


def find(a):
    found = []
    for one in modal.Sandbox.list(app_id=app().app_id):
        name = one.get_tags().get("attune", "")
        if name.startswith(a["prefix"]) and one.poll() is None:
            found.append({"name": name, "id": one.object_id})
    return {"leases": found}


def run(a):
    there = named(a["name"])
    if there is None:
        return {"error": "gone"}
    p = there.exec("sh", "-c", a["script"], timeout=a["limit_s"], text=False)
    out, err = p.stdout.read(), p.stderr.read()
    return {"out": base64.b64encode(out).decode(), "err": base64.b64encode(err[-4096:]).decode(), "code": p.wait()}


def push(a):
    there = named(a["name"])
    if there is None:
        return {"error": "gone"}
    p = there.exec("sh", "-c", 'mkdir -p "$(dirname "$1")" && cat >"$1.part" && mv "$1.part" "$1"', "sh", a["to"],
                   timeout=a["limit_s"], text=False)
    with open(a["from"], "rb") as f:
        while data := f.read(CHUNK):
            p.stdin.write(data)
            p.stdin.drain()
    p.stdin.write_eof()
    p.stdin.drain()
    return {"code": p.wait()}


def release(a):
    there = named(a["name"])
    if there is not None:
        there.terminate()
    return {}


try:
    asked = json.loads(sys.stdin.read())
    answer = {f.__name__: f for f in (check, acquire, life, find, run, push, release)}[sys.argv[1]](asked)
except Exception as e:  # one sentence, whatever it is
    kind = type(e).__name__
    text = (str(e) or "no reason given").splitlines()[0]
    for secret in (os.environ.get("MODAL_TOKEN_ID"), os.environ.get("MODAL_TOKEN_SECRET")):
        text = text.replace(secret, "...") if secret else text
    answer = {"error": "auth" if kind in ("AuthError", "PermissionDeniedError") else "failed",
              "text": kind + ": " + text[:300]}
print(json.dumps(answer))
)py";

}  // namespace attune
