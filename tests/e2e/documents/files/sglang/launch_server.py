# Stands for SGLang's server: answers each request with 200.
import argparse
import http.server

options = argparse.ArgumentParser()
options.add_argument("--model-path")
options.add_argument("--tp")
options.add_argument("--port", type=int)


class Health(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_):
        pass


given = options.parse_args()
http.server.HTTPServer(("127.0.0.1", given.port), Health).serve_forever()
