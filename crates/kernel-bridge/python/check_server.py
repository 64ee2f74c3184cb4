"""Runs the jobs of `check`, each in a process of its own that may hang, abort or eat memory.

torch and JAX are imported once; every job is a fork of that process, which costs a tenth of a second
and not three. The compiler for TPUs is loaded in the fork: it reads its settings once, and it ends the
process on an operation that its cost model does not know.

One JSON object a line comes in on standard input: `id`, `job` (a function of `check_jobs`), `limit_s`,
and what the job needs. Answers go to what was standard output: any number
with `part`, then one with `done`, `error` or `ended`. What a kernel prints never mixes with them.
"""

import ctypes
import json
import os
import resource
import select
import signal
import sys
import tempfile
import time
import traceback
import warnings

#: Without these libtpu waits for a metadata server, or for the lock of another process.
SETTINGS = {
    "TPU_SKIP_MDS_QUERY": "1",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    # A crash is an answer here: nobody reads the core dump or the report of it.
    "TPU_STDERR_LOG_LEVEL": "2",
}
#: Seconds between two looks at the memory of the jobs.
_WATCH = 0.25
_PR_SET_PDEATHSIG = 1
#: How much of what a job said on standard error is kept.
_SAID = 6_000


class Running:
    """A job that runs: its process, its answers so far, and where its output goes."""

    def __init__(self, job, pid, pipe, said, printed):
        self.job = job
        self.pid = pid
        self.pipe = pipe
        self.said = said
        self.printed = printed
        self.buffer = b""
        self.answered = False
        self.started = time.monotonic()
        self.deadline = self.started + job["limit_s"]
        self.peak = 0
        self.killed = None

    def kill(self, why):
        self.killed = why
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass

    def resident(self):
        """Bytes of memory in use that are the job's own."""
        try:
            with open(f"/proc/{self.pid}/statm", encoding="ascii") as file:
                _, resident, shared = file.read().split()[:3]
        except OSError:
            return 0
        return (int(resident) - int(shared)) * resource.getpagesize()


def serve(install, payloads):
    """Answers until standard input ends. `install` makes the rest of our package, in a job: it starts the
    CPU client of XLA, whose threads a fork would lose."""
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    os.environ.update(SETTINGS)
    # Neither torch nor JAX has threads yet: nothing runs in this process.
    warnings.filterwarnings("ignore", message=r"os\.fork\(\) was called")
    _import_what_jobs_need()
    _send(answers, {"ready": True})
    running = {}
    left = b""
    open_input = True
    while open_input or running:
        sources = list(running)
        if open_input:
            sources.append(0)
        ready, _, _ = select.select(sources, [], [], _WATCH)
        if 0 in ready:
            read = os.read(0, 1 << 20)
            open_input = bool(read)
            if not read:
                # Whoever asked is gone; nobody wants the answers.
                for job in running.values():
                    job.kill("abandoned")
            *lines, left = (left + read).split(b"\n")
            for line in lines:
                started = _start(json.loads(line), install, payloads)
                running[started.pipe] = started
        for pipe in [pipe for pipe in running if pipe in ready]:
            if not _read(running[pipe], answers):
                _finish(running.pop(pipe), answers)
        _watch(running.values())


def _import_what_jobs_need():
    import jax.experimental.pallas.tpu  # noqa: F401
    from jax._src.pallas.mosaic.interpret import interpret_pallas_call  # noqa: F401
    from jax.experimental import topologies  # noqa: F401


def _send(stream, message):
    stream.write(_line(message))


def _line(message):
    return json.dumps(message).encode() + b"\n"


def _start(job, install, payloads):
    reading, writing = os.pipe()
    said, printed = tempfile.TemporaryFile(), tempfile.TemporaryFile()
    pid = os.fork()
    if pid:
        os.close(writing)
        return Running(job, pid, reading, said, printed)
    try:
        os.setpgid(0, 0)
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(printed.fileno(), 1)
        os.dup2(said.fileno(), 2)
        os.close(reading)
        # What was said before a crash must be there afterwards.
        sys.stdout.reconfigure(line_buffering=True)
        with os.fdopen(writing, "wb", buffering=0) as answers:
            _run(job, install, payloads, answers)
    finally:
        # Not `exit`: the parent's handlers are not the job's to run.
        os._exit(0)


def _run(job, install, payloads, answers):
    try:
        check_jobs = install()["check_jobs"]

        done = check_jobs.run(job, payloads, lambda part: _send(answers, {"part": part}))
        # Here, where its failure is reported: a result may hold what JSON has no word for.
        last = _line({"done": done})
    except BaseException as error:  # a kernel may raise anything, SystemExit too
        last = _line({"error": describe(error, [payload["path"] for payload in payloads])})
    # Before the last answer: what was printed is read as soon as that has come.
    _flush()
    answers.write(last)


def _flush():
    """Writes out what Python and C code have printed."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):  # a kernel may have closed it
            pass
    ctypes.CDLL(None).fflush(None)


def describe(error, folders):
    """An exception as the other side reports it, with the place in the kernel's files."""
    place = None
    for frame in traceback.extract_tb(error.__traceback__):
        folder = next((f for f in folders if frame.filename.startswith(f"{f}/")), None)
        if folder is not None:
            place = f"{frame.filename[len(folder) + 1:]}:{frame.lineno}"
            if frame.line:
                place += f": {frame.line.strip()}"
    return {
        "class": type(error).__name__,
        "message": str(error)[:20_000],
        "place": place,
        "traceback": "".join(traceback.format_exception(error))[-20_000:],
    }


def _read(job, answers):
    """Hands on what the job answered; False once it has closed its end."""
    read = os.read(job.pipe, 1 << 20)
    *lines, job.buffer = (job.buffer + read).split(b"\n")
    for line in lines:
        message = json.loads(line)
        if "part" in message:
            # The limit is for each part: a long job that answers is not stuck.
            job.deadline = time.monotonic() + job.job["limit_s"]
        else:
            job.answered = True
            message.update(_account(job))
        _send(answers, {"id": job.job["id"], **message})
    return bool(read)


def _finish(job, answers):
    os.close(job.pipe)
    # A process that has closed its pipe and does not end is stuck in an exit handler.
    for _ in range(100):
        pid, status = os.waitpid(job.pid, os.WNOHANG)
        if pid:
            break
        time.sleep(0.01)
    else:
        job.kill(job.killed)
        _, status = os.waitpid(job.pid, 0)
    if not job.answered:
        ended = job.killed or f"signal {status & 0x7F}" if status & 0x7F else f"exit {status >> 8}"
        _send(answers, {"id": job.job["id"], "ended": ended, "said": _tail(job.said), **_account(job)})
    job.said.close()
    job.printed.close()


def _watch(jobs):
    now = time.monotonic()
    for job in jobs:
        job.peak = max(job.peak, job.resident())
        if now > job.deadline:
            job.kill("time limit")
        elif job.peak > job.job.get("memory_bytes", 1 << 62):
            job.kill("memory limit")


def _account(job):
    return {
        "seconds": time.monotonic() - job.started,
        "peak_bytes": job.peak,
        "printed": _tail(job.printed)[-2_000:],
    }


def _tail(file):
    """The end of a file that a job may still write to: its position, which the job shares, stays."""
    size = os.fstat(file.fileno()).st_size
    return os.pread(file.fileno(), _SAID, max(0, size - _SAID)).decode(errors="replace")
