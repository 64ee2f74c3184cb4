"""The program of the child process that runs the jobs of `check`; see `check_server`."""

import json
import sys

# Raw, a line: what follows on standard input is the server's to read.
message = json.loads(sys.stdin.buffer.raw.readline())
scope = {}
exec(compile(message["bootstrap"], "<kernel-bridge>/bootstrap.py", "exec"), scope)
scope["prepare"](False, None)
sources = message["sources"]
server = scope["install"]({"check_server": sources.pop("check_server")})["check_server"]
server.serve(lambda: scope["install"](sources), message["payloads"])
