"""An application of ours under uvicorn, asked over HTTP. The argument is dashboard, service or proxy."""

import http.server
import sys
import threading
import time
import urllib.request

import uvicorn

from onceward import Once

once = Once("sqlite:///served.db")
once.run("k", int)
if sys.argv[1] == "dashboard":
    from onceward.dashboard import dashboard

    app, path = dashboard(once), "/"
elif sys.argv[1] == "service":
    from onceward.service import service

    app, path = service(once), "/healthz"
else:
    from onceward.proxy import Proxy
    from onceward.web import Route, Rules, Scope

    upstream = http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler)
    threading.Thread(target=upstream.serve_forever, daemon=True).start()
    rules = Rules(Route("/payments"), scope=Scope.CREDENTIAL)
    app, path = Proxy(f"http://127.0.0.1:{upstream.server_port}", once, rules, name="shop"), "/"

server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="warning"))
thread = threading.Thread(target=server.run)
thread.start()
while not server.started and thread.is_alive():
    time.sleep(0.05)
port = server.servers[0].sockets[0].getsockname()[1]
with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as answer:
    assert answer.status == 200
    assert answer.read()
server.should_exit = True
thread.join()
