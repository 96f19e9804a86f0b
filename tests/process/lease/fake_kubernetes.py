"""fake_kubernetes.py PORT TOKEN [ADDRESS]: Leases of one namespace, as an API server keeps them: each change has a new
resourceVersion, and one that names another than there is comes too late."""

import http.server
import json
import re
import sys
import threading

TOKEN = sys.argv[2]
leases, lock, version = {}, threading.Lock(), [100]
PATH = re.compile(r"^/apis/coordination\.k8s\.io/v1/namespaces/default/leases(?:/([a-z0-9.-]+))?$")


def merge(into, patch):
    for key, value in patch.items():
        if value is None:
            into.pop(key, None)
        elif isinstance(value, dict):
            merge(into.setdefault(key, {}), value)
        else:
            into[key] = value


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, code, what):
        # It indents for curl.
        body = (json.dumps(what, indent=2) + "\n").encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def failure(self, code, reason):
        self.answer(code, {"kind": "Status", "status": "Failure", "reason": reason, "code": code})

    def do(self):
        size = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(size)) if size else {}
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            return self.failure(401, "Unauthorized")
        found = PATH.match(self.path)
        if not found:
            return self.failure(404, "NotFound")
        with lock:
            name = found[1]
            if self.command == "POST" and not name:
                name = body["metadata"]["name"]
                if name in leases:
                    return self.failure(409, "AlreadyExists")
                return self.keep(201, name, body)
            if name not in leases:
                return self.failure(404, "NotFound")
            if self.command == "GET":
                return self.answer(200, leases[name])
            if self.command != "PATCH" or self.headers["Content-Type"] != "application/merge-patch+json":
                return self.failure(415, "UnsupportedMediaType")
            told = body.get("metadata", {}).get("resourceVersion")
            if told is not None and told != leases[name]["metadata"]["resourceVersion"]:
                return self.failure(409, "Conflict")
            lease = json.loads(json.dumps(leases[name]))
            merge(lease, body)
            return self.keep(200, name, lease)

    def keep(self, code, name, lease):
        if not re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", lease["spec"]["renewTime"]):
            return self.failure(400, "BadRequest")
        version[0] += 1
        lease["metadata"]["resourceVersion"] = str(version[0])
        lease["metadata"]["managedFields"] = [{"fieldsV1": {"f:spec": {"f:holderIdentity": {}, "f:leaseTransitions": {}}}}]
        leases[name] = lease
        return self.answer(code, lease)

    do_GET = do_POST = do_PATCH = do


http.server.ThreadingHTTPServer((sys.argv[3] if len(sys.argv) > 3 else "127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
