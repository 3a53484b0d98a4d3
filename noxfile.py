"""All checks of the project, each as a target: ``nox --list`` shows them, ``nox -s NAME`` runs one.

``.ci/run`` runs the targets with the tag ``commit`` on every commit. Targets with the tag ``nightly`` take longer, and
run at night. Targets that test the package use one wheel, which ``wheel`` compiles in a copy of the checkout.
``readme`` runs README's two lines in that copy, where nothing is left to compile.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import nox
from nox.command import CommandFailed

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell's background job; tests of Ctrl-C would inherit this
    signal.signal(signal.SIGINT, signal.default_int_handler)

HERE = Path(__file__).parent


def integrations(*patterns: str) -> list[str]:
    """Return the integrations' test files that match, and the tests of documentation and of rules in all frameworks."""
    folder = HERE / "tests/integrations"
    names = ("docs", "kept_by_client", "replies", "run", *patterns)
    found = {path for name in names for path in folder.glob(f"test_{name}.py")}
    return sorted(str(path.relative_to(HERE)) for path in found)


FOLDER = Path(os.environ.get("FASTAGG_CI_FOLDER", HERE / "build/ci")).resolve()
FOLDER.mkdir(parents=True, exist_ok=True)
COPY = FOLDER / "checkout"
COMPILING = ("cmake", "ninja", "pybind11")  # the packages that a build without pip needs, besides a compiler
PYTEST = ("pytest", "-q", "-ra", "-p", "no:cacheprovider")
FLOWER = integrations("session", "flower*")
FLOWER_EXTRAS = "flower,test,tensorboard,mlflow,wandb"
FLARE = integrations("nvflare*")
APPFL = [*integrations("appfl", "pfl"), "tests/rules/test_optax.py"]
ENVIRONMENT = {
    "MPLBACKEND": "Agg",
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    # 0 means --no-compile, so pip makes no bytecode. For torch, that would take two thirds of the installation's
    # processor time, and most modules are never imported.
    "PIP_NO_COMPILE": "0",
}

nox.options.tags = ["commit"]
nox.options.default_venv_backend = "venv"


def target(tag: str, *requires: str) -> Callable:
    """Declare a target with its own environment. Targets run in parallel, after the targets they require."""
    return nox.session(tags=[tag], requires=list(requires), allow_parallel=True)


def install(session: nox.Session, *packages: str, wheel: str | None = None) -> None:
    """Install ``packages`` in their tested versions, and the wheel with the extras that ``wheel`` names."""
    session.env.update(ENVIRONMENT)
    if wheel is not None:
        packages = (f"{built()}[{wheel}]" if wheel else str(built()), *packages)
    session.install("-q", "-c", "constraints.txt", *packages)


def install_flower(session: nox.Session, *packages: str, wheel: str = FLOWER_EXTRAS) -> None:
    install(session, "flwr[simulation]==1.42.0", "peft", *packages, wheel=wheel)


def install_flare(session: nox.Session) -> None:
    install(session, "torch")  # FLARE requires no version, and this line installs the tested one
    install(session, wheel="nvflare,test")


def needed(extra: str | None = None) -> list[str]:
    """Return the requirements of the package and of one extra, without the package itself."""
    project = nox.project.load_toml("pyproject.toml")["project"]
    names = project["optional-dependencies"][extra] if extra else project["dependencies"]
    own = [re.fullmatch(r"fastagg\[(.*)\]", name) for name in names]
    inner = [name for found in own if found for part in found[1].split(",") for name in needed(part)]
    return [*needed(), *inner, *(name for name, found in zip(names, own, strict=True) if not found)] if extra else names


def built() -> Path:
    """Return the wheel that the target ``wheel`` has made."""
    (path,) = (FOLDER / "wheel").glob("*.whl")
    return path


def copy_checkout(folder: Path) -> None:
    """Copy the files of git into a new folder."""
    shutil.rmtree(folder, ignore_errors=True)
    listed = subprocess.check_output(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], text=True)
    for name in filter(os.path.exists, listed.rstrip("\0").split("\0")):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(name, folder / name)


# A program that prints the version and path of a Python that can make environments and compile an extension.
PROBE = """
import ensurepip, os, sys, sysconfig
assert os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h"))
print("%d.%d" % sys.version_info[:2], sys._base_executable)
"""


def interpreters() -> tuple[dict[str, str], list[str]]:
    """Return version -> path of the installed Pythons that pyproject.toml names, and the versions not installed."""
    classifiers = "\n".join(nox.project.load_toml("pyproject.toml")["project"]["classifiers"])
    versions = re.findall(r"(?m)^Programming Language :: Python :: (3\.\d+)$", classifiers)
    folders = [Path(folder) for folder in os.get_exec_path()]
    if shutil.which("pyenv"):
        folders += Path(subprocess.check_output(["pyenv", "root"], text=True).strip()).glob("versions/*/bin")
    here: dict[str, str] = {}
    for version in versions:
        for path in filter(Path.exists, (folder / f"python{version}" for folder in folders)):
            said = subprocess.run([path, "-c", PROBE], capture_output=True, text=True, check=False).stdout.split()
            if said[:1] == [version]:
                here.setdefault(version, said[1])
    return here, [version for version in versions if version not in here]


def debian(session: nox.Session, command: str, *packages: str) -> None:
    """Install Debian's ``packages`` if ``command`` is missing. Without root, print what the target leaves out."""
    if shutil.which(command) or not shutil.which("apt-get"):
        return
    sudo = [] if os.geteuid() == 0 else ["sudo", "-n"] if "CI" in os.environ else None
    if sudo is None:
        return
    with open(FOLDER / "apt.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for line in (["update"], ["install", "-y", "--no-install-recommends", *packages]):
            session.run(*sudo, "apt-get", *line, external=True, silent=True, success_codes=range(256))


def script(session: nox.Session, name: str, *arguments: object) -> None:
    """Run a script of ``.ci`` with a new folder as its first argument."""
    folder = FOLDER / session.name
    shutil.rmtree(folder, ignore_errors=True)
    session.run("bash", f".ci/{name}.sh", str(folder), *map(str, arguments), external=True)


def compiled_since(begun: float) -> list[str]:
    """Return the objects in the copy that were compiled after ``begun``, except the object with the sources' digest."""
    objects = (COPY / "build").rglob("*.o")
    return [path.name for path in objects if path.stat().st_mtime > begun and "digest" not in path.name]


@target("commit")
def wheel(session: nox.Session) -> None:
    """Compile the wheel that other targets test, in a copy of the checkout, with pip as a user would."""
    session.env.update(ENVIRONMENT)
    copy_checkout(COPY)
    shutil.rmtree(FOLDER / "wheel", ignore_errors=True)
    traced = "cmake.define.FASTAGG_TRACE=ON"  # also links tests/native/trace.cpp with the same objects
    session.run("pip", "wheel", "-q", "--no-deps", "-C", traced, "-w", str(FOLDER / "wheel"), str(COPY))


@target("commit", "wheel")
def readme(session: nox.Session) -> None:
    """Run README's two lines in a new environment. The target reads the lines from README."""
    session.env.update(ENVIRONMENT)
    text = (COPY / "README.md").read_text()
    for last in ("fastagg demo", "pytest -n auto"):
        (line,) = (found for found in re.findall(r"(?m)^pip install .*$", text) if found.endswith(f"&& {last}"))
        begun = time.time()
        with session.chdir(COPY):
            session.run("bash", "-euc", line, external=True)
        session.log(f"{line}: {time.time() - begun:.0f} s")
        if again := compiled_since(begun):
            session.error(f"compiled again: {again}")


@target("commit", "wheel")
def arm(session: nox.Session) -> None:
    """Compare the bits of kernels and the audits of logs between this machine and an emulated ARM processor."""
    install(session, *COMPILING)
    debian(session, "qemu-aarch64", "g++-aarch64-linux-gnu", "qemu-user")
    (trace,) = (COPY / "build").rglob("fastagg_trace")
    script(session, "arm", trace.parent)


@target("commit")
def linters(session: nox.Session) -> None:
    """Check style, types and the format of C++."""
    install(session, *needed("sim"), "ruff", "mypy", "clang-format")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("mypy")
    listed = "git ls-files 'csrc/*' 'tests/emulation/*' 'tests/native/*.cpp' | grep -vE '[.](py|md)$'"
    sources = f"{listed} | xargs clang-format --dry-run --Werror"
    session.run("bash", "-euo", "pipefail", "-c", sources, external=True)


@target("commit", "wheel")
def package(session: nox.Session) -> None:
    """Check the source distribution, the wheel without extras, and the wheel with the oldest versions of packages."""
    install(session, "build")
    session.run("python", "-m", "build", "-s", "-o", str(FOLDER / "sdist"), str(COPY), silent=True)
    session.run("python", ".ci/sources.py", *map(str, (FOLDER / "sdist").glob("*.tar.gz")))
    script(session, "package", built())


@target("commit", "wheel")
@nox.parametrize("age", ["oldest", "newest"])
def pythons(session: nox.Session, age: str) -> None:
    """Test the wheel with the newest packages, on the oldest and the newest Python of this machine."""
    session.env.update(ENVIRONMENT)
    here, missing = interpreters()
    session.log(f"Python {', '.join(here)}; not on this machine: {', '.join(missing) or 'none'}")
    if age == "newest" and len(here) == 1:
        session.skip(f"no other Python; missing: {', '.join(missing)}")
    version = [*here][0 if age == "oldest" else -1]
    folder = FOLDER / f"python{version}"
    shutil.rmtree(folder, ignore_errors=True)
    wheel = built()
    if f"-cp{version.replace('.', '')}-" not in wheel.name:
        wheel = folder.with_suffix(".sources")
        copy_checkout(wheel)
    session.run("bash", ".ci/pythons.sh", str(folder), here[version], str(wheel), external=True)


@target("commit", "wheel")
def docs(session: nox.Session) -> None:
    """Build the documentation with warnings as errors, and check that figures name their commands."""
    install(session, wheel="docs,sim")
    script(session, "docs")
    session.run("python", ".ci/figures.py")


@target("nightly", "wheel")
def flower_processes(session: nox.Session) -> None:
    """Test with Flower's own processes on loopback, with some of them killed, and its simulation engine."""
    install_flower(session)
    session.run(*PYTEST, "-m", "slow", "--durations=8", *FLOWER)
    session.run(*PYTEST, "tests/sim/test_data_text.py")  # peft brings transformers


@target("commit", "wheel")
def nvflare(session: nox.Session) -> None:
    """Test with real NVIDIA FLARE."""
    install_flare(session)
    session.run(*PYTEST, *FLARE)


@target("nightly", "wheel")
def nvflare_jobs(session: nox.Session) -> None:
    """Test with jobs in NVIDIA FLARE's simulator, with sites and servers that fail."""
    install_flare(session)
    session.run(*PYTEST, "-m", "slow", "--durations=8", *FLARE)


@target("nightly", "wheel")
def appfl(session: nox.Session) -> None:
    """Test with real APPFL, pfl and optax, and the small examples with and without fastagg."""
    install(session, "torch", "optax")
    install(session, wheel="appfl,pfl,test,tensorboard")
    session.run(
        *PYTEST, "-m", "", "--durations=8", *integrations("small_examples", "appfl", "pfl"), "tests/rules/test_optax.py"
    )


@target("nightly", "wheel")
@nox.parametrize("framework", ["flower", "nvflare", "pfl"])
def theirs(session: nox.Session, framework: str) -> None:
    """Run a framework's own tests of the parts that fastagg replaces, with fastagg's classes in their place."""
    install(session, "torch", "parameterized", "pytest-lazy-fixtures")
    install(session, wheel=f"{framework},test")
    folder = FOLDER / f"theirs-{framework}"
    shutil.rmtree(folder, ignore_errors=True)
    session.run("python", ".ci/theirs.py", framework, str(folder))


# Extras that can be installed together, further packages, and their tests.
NEWEST = {
    "core": (
        "test,queue,privacy,tensorboard,mlflow,wandb",
        [],
        ["tests", "--ignore=tests/integrations"],
    ),
    "nlp": ("test,nlp", [], ["tests/sim/test_data_text.py"]),
    "flower": (FLOWER_EXTRAS, ["flwr[simulation]", "peft"], FLOWER),
    "nvflare": ("nvflare,test", ["torch"], FLARE),
    "appfl": (
        "appfl,pfl,test,tensorboard",
        ["torch", "optax"],
        [*integrations("appfl", "pfl"), "tests/rules/test_optax.py"],
    ),
    "ray": ("ray,test", [], ["tests/integrations/test_ray.py"]),
    "docs": ("docs,sim", [], []),
}


@target("nightly", "wheel")
@nox.parametrize("group", [*NEWEST])
def newest(session: nox.Session, group: str) -> None:
    """Test with the newest versions of dependencies and frameworks. If a test fails, print the versions that differ."""
    session.env.update(ENVIRONMENT)
    extras, packages, tests = NEWEST[group]
    session.install("-q", f"{built()}[{extras}]", *packages)
    frozen = str(session.run("pip", "list", "--format", "freeze", silent=True)).split()
    tested = dict(line.split("==") for line in Path("constraints.txt").read_text().split() if "==" in line)
    lines = (line.split("==") for line in frozen if "==" in line)
    newer = [
        f"{name} {version} ({tested.get(name, 'not pinned')})" for name, version in lines if version != tested.get(name)
    ]
    session.log(f"newest (tested): {', '.join(newer)}")
    try:
        if tests:
            session.run(*PYTEST, *tests)
        else:
            script(session, "docs")
    except CommandFailed:
        session.error(f"{group} broke with one of: {', '.join(newer)}")


@target("nightly", "wheel")
def byzfl(session: nox.Session) -> None:
    """Compare robust rules with byzfl's."""
    install(session, "torch", "byzfl", wheel="test")
    session.run(*PYTEST, "tests/ops/test_combine.py", "-k", "byzfl")


@target("nightly", "wheel")
@nox.parametrize("pip", ["22.3", ""])
def constraints(session: nox.Session, pip: str) -> None:
    """Resolve every extra with constraints.txt, in a new environment, by Python 3.11's oldest pip and by the newest."""
    session.env.update(ENVIRONMENT)
    session.install("-q", "-U", f"pip=={pip}" if pip else "pip")
    for extra in nox.project.load_toml("pyproject.toml")["project"]["optional-dependencies"]:
        begun, needs = time.time(), f"{built()}[{extra}]"
        session.run("pip", "install", "-q", "--dry-run", "-c", "constraints.txt", needs, silent=True)
        session.log(f"{extra}: {time.time() - begun:.0f} s")


@target("commit")
def engine(session: nox.Session) -> None:
    """Test the engine without Python under AddressSanitizer, UBSan and ThreadSanitizer."""
    install(session, *COMPILING)
    script(session, "engine")


@target("commit")
def cuda(session: nox.Session) -> None:
    """Compile the CUDA kernels for every architecture, and read the assembler's reports. It needs nvcc."""
    if shutil.which("nvcc") is None:
        session.skip("no nvcc: the CUDA kernels were not compiled")
    install(session, "numpy", *COMPILING)
    script(session, "cuda")


@target("commit", "wheel")
def extras(session: nox.Session) -> None:
    """Test with real Flower, and with other extras: queues, callbacks, trackers, Ray."""
    debian(session, "nats-server", "nats-server")
    install_flower(session, wheel=f"{FLOWER_EXTRAS},queue,ray,privacy")
    session.run(*PYTEST, *FLOWER)
    session.run(*PYTEST, "tests/server/test_queue_example.py", "tests/clients")
    session.run(*PYTEST, "tests/integrations/test_ray.py")
    session.run(*PYTEST, "tests/ops/test_combine.py", "-k", "flower")
    session.run(*PYTEST, "tests/sim/test_run.py", "tests/cli/test_cli.py", "-k", "tracker")
    session.run(*PYTEST, "tests/test_trackers.py")
    session.run(*PYTEST, "tests/rules/test_privacy.py", "-k", "spent or charged")
    session.run(*PYTEST, "-m", "slow", *FLOWER, "-k", "simulation_engine and FADAS")


@target("nightly")
def container(session: nox.Session) -> None:
    """Build the container of `fastagg serve`, and ask it for help. It needs Docker."""
    docker = shutil.which("docker")
    if docker is None or subprocess.run([docker, "info"], capture_output=True, check=False).returncode:
        session.skip("no Docker: the container was not built")
    session.run(docker, "build", "-q", "-t", "fastagg-ci", ".", external=True)
    session.run(docker, "run", "--rm", "fastagg-ci", "--help", external=True)


@target("nightly", "wheel")
def serve_kills(session: nox.Session) -> None:
    """Kill `fastagg serve` 1,000 times while clients push."""
    install(session, wheel="test")
    session.run("python", ".ci/power.py", "serve", "1000")


@target("nightly", "wheel")
def ray_kills(session: nox.Session) -> None:
    """Kill actors of Ray 200 times, and compare the bits of their models."""
    install(session, wheel="test,ray")
    session.run(*PYTEST, "-m", "slow", "tests/integrations/test_ray.py")


@target("nightly", "wheel")
def slow(session: nox.Session) -> None:
    """Run the slow tests, which repeat much, and the property tests with all examples."""
    install(session, wheel="test")
    session.run("pytest", "-n", "auto", "-m", "slow", "--hypothesis-profile", "thorough", "--durations", "10")


@target("nightly", "wheel")
def machine(session: nox.Session) -> None:
    """Simulate lost power, kills, and refused memory, threads and files. ``-- SEED`` repeats a night's run."""
    install(session, wheel="test")
    seed = session.posargs[0] if session.posargs else str(int(time.time()) // 86400)
    session.log(f"seed {seed}")
    for what, count in (("power", 2000), ("kill", 500), ("memory", 600), ("threads", 600), ("files", 600)):
        session.run("python", "-P", ".ci/power.py", what, str(count), seed)


@target("nightly", "wheel")
def limits(session: nox.Session) -> None:
    """Run tests of servers and folders with few threads (64 more), addresses (6 GB), or file descriptors (64)."""
    install(session, wheel="test")
    tests = "tests/server/test_server.py tests/durable/test_open.py tests/csrc/test_pool.py"
    for limit in ("ulimit -v 6000000", "ulimit -n 64", 'ulimit -u "$(($(ps -eL --no-headers | wc -l) + 64))"'):
        line = f"{limit}; exec python -P -m {' '.join(PYTEST)} {tests}"
        session.run("bash", "-euc", line, external=True, env={"OMP_NUM_THREADS": "1"})


@target("nightly", "wheel")
def volumes(session: nox.Session) -> None:
    """Fill volumes of ext4, XFS and btrfs to the last block. Without the right to mount, tests are skipped."""
    debian(session, "mkfs.xfs", "xfsprogs", "btrfs-progs")
    install(session, wheel="test")
    session.run(*PYTEST, "-m", "", "tests/durable/test_volumes.py")


@target("nightly", "wheel")
def threads(session: nox.Session) -> None:
    """Run the tests that use threads and need few packages, also on a Python without a global lock."""
    install(session, "pytest", "hypothesis", wheel="")
    names = ("dispatch", "ids", "leases", "reentry", "threads")
    session.run(*PYTEST, *(f"tests/server/test_{name}.py" for name in names))


@target("nightly")
def sanitizers(session: nox.Session) -> None:
    """Test the kernels, also CUDA's in emulation, on a build with AddressSanitizer and UBSan."""
    install(session, *needed("test"), *COMPILING)
    script(session, "sanitize")


@target("nightly")
def races(session: nox.Session) -> None:
    """Look for races in the CUDA kernels, emulated, with ThreadSanitizer."""
    install(session, *COMPILING)
    script(session, "races")


@target("nightly")
def readers(session: nox.Session) -> None:
    """Look for races between Python threads that read a server's vectors and threads that send updates."""
    install(session, *needed(), *COMPILING)
    script(session, "readers")


@target("nightly")
def clang(session: nox.Session) -> None:
    """Check function sizes, compile with Clang's warnings, and compare kernels' bits with tests/native/trace.txt."""
    install(session, *COMPILING, "clang-tidy")
    debian(session, "clang", "clang")
    script(session, "clang")


@target("nightly")
def macos(session: nox.Session) -> None:
    """Compile and link for macOS on Apple silicon, without a Mac."""
    install(session, *COMPILING, "ziglang", "lief")
    script(session, "macos")


@target("nightly")
def incremental(session: nox.Session) -> None:
    """Check how much a changed line compiles, and how many files an addition changes."""
    session.env.update(ENVIRONMENT)
    script(session, "incremental")


@target("nightly", "wheel")
def browser(session: nox.Session) -> None:
    """Check the HTML reports in Chromium."""
    debian(session, "chromium", "chromium")
    install(session, wheel="test")
    session.run(*PYTEST, "tests/page")


@target("nightly", "wheel")
def speed(session: nox.Session) -> None:
    """Compare three kernels with the speed of the machine's memory and with torch."""
    install(session, wheel="test,bench")
    session.run(*PYTEST, "bench", "--floors")


@target("nightly")
def gpu(session: nox.Session) -> None:
    """Run the stages of ``bench/gpu.sh`` without a GPU, with emulated CUDA and small sizes."""
    install(session, *needed("test"), *needed("bench"), *COMPILING)
    session.run("bash", "bench/gpu.sh", external=True, env={"DRY": "1", "OUT": str(FOLDER / "gpu")})


@target("nightly")
def gpgpusim(session: nox.Session) -> None:
    """Let GPGPU-Sim execute nvcc's PTX of the kernels, and count its instructions. It needs nvcc."""
    debian(session, "bison", "bison", "flex", "zlib1g-dev")
    install(session, *needed("test"), *COMPILING)
    script(session, "gpgpusim")
