"""Checks what additions cost a contributor: adds a toy optimizer, row format and preset, and counts changed files.

The script changes the checkout that it runs in. So .ci/incremental.sh runs it in a copy, with the copy's build folder
BUILD. The numbers of files must be those in CONTRIBUTING.md. Then the toys are compiled. Existing tests must include
the toys by themselves, and pass: the comparisons with the reference's bits and with the float64 model. The toy row
format is only counted, because nearly every file would be compiled again.

    python .ci/contribute.py BUILD
"""

import json
import re
import subprocess
import sys
from pathlib import Path

Edits = dict[str, list[tuple[str, str]]]  # file -> (existing text, text to insert before it)

OPTIMIZER: Edits = {
    "csrc/math/optimizers.h": [
        (
            "using Optimizers = List<",
            """struct Toy {
  static constexpr const char* kName = "toy";
  static constexpr bool kM = true, kV = false, kVhat = false, kScalesV = false, kAlong = false,
                        kPlain = false;
  template <typename L, typename F>
  FASTAGG_FN void advance(F d, MomentValues<F>& s, const Hyper&, float decay1, float) {
    s.m = decay1 * s.m + d;
  }
  template <typename L, typename F>
  FASTAGG_FN F moved(F d, F x, const MomentValues<F>&, const MomentValues<F>& s, const Hyper& h) {
    return x + h.lr * (d + h.beta1 * s.m);
  }
  static double reach(const Decay& s, double d, MomentBounds& bound) {
    bound.m = s.beta1 * bound.m + d;
    return d + s.beta1 * bound.m;
  }
};

""",
        ),
        (">;\n\n}  // namespace fastagg", ", Toy"),
    ],
    "fastagg/rules/optimizers.py": [
        ('    "Yogi",\n', '    "Toy",\n'),
        (
            "@dataclass(frozen=True)\nclass Adam(",
            '''@dataclass(frozen=True)
class Toy(Momentum):
    """``m <- beta*m + D; x <- x + lr*(D + beta*m)``.

    Example:
        >>> fastagg.Server(torch.zeros(2), optimizer=fastagg.Toy(0.1)).optimizer.beta
        0.9
    """

    kernel: ClassVar[str] = "toy"


''',
        ),
    ],
}
OPTIMIZER_TESTS: Edits = {
    "tests/support/reference/step.py": [
        (
            '    new["m"] = m = b1',
            """    if optimizer == "toy":
        new["m"] = b1 * state["m"] + d
        return {"x": x + lr * (d + b1 * new["m"]), **new}
""",
        )
    ],
    "tests/support/formulas.py": [
        (
            '        if name == "Nesterov":',
            """        if name == "Toy":
            self.m = mu * self.m + d
            return d + mu * self.m
""",
        )
    ],
    "tests/fuzz/drawn.py": [('"Momentum", "Nesterov", "DelayedNesterov"', '"Toy", ')],
    "tests/fuzz/beside.py": [('"Momentum": {"beta": 0.9}', '"Toy": {"beta": 0.8}, ')],
}
FORMAT: Edits = {
    "csrc/math/rows.h": [
        (
            "using RowFormats = List<",
            """struct Int6 : ScaledCodes<31> {
  static constexpr const char* kName = "int6";
  static constexpr int kBits = 8, kPlanes = 2;
  typedef int8_t Code;
  FASTAGG_FN void join(Code* codes, int64_t i, int64_t plane, int32_t first, int32_t second) {
    Int8::join(codes, i, plane, first, second);
  }
  FASTAGG_FN void split(const Code* codes, int64_t i, int64_t plane, int32_t& first, int32_t& second) {
    Int8::split(codes, i, plane, first, second);
  }
};

""",
        ),
        (">;\nconstexpr int kPlainRows", ", Int6"),
    ],
    "fastagg/rules/names.py": [("]  # of a client's row; AllClients", ', "int6"')],
}
FORMAT_TESTS: Edits = {"tests/support/reference/rows.py": [('"int4": 7.0', '"int6": 31.0, ')]}
PRESET: Edits = {
    "fastagg/presets.py": [
        ('    "FedYogi",\n', '    "FedNesterov",\n'),
        (
            "@preset\ndef FADAS(",
            '''@preset
def FedNesterov(params: object, *, lr: float = 1.0, buffer_size: int = 10, **server: Unpack[ServerSettings]) -> Server:
    """FedBuff with Nesterov's momentum.

    Example:
        >>> fastagg.FedNesterov(torch.zeros(2), buffer_size=2).version
        0
    """
    return Server(params, directions.Buffer(buffer_size), Nesterov(lr), **server)


''',
        ),
    ]
}
PRESET_TESTS: Edits = {
    "tests/support/presets.py": [
        ('    "ASGD": _of(', '    "FedNesterov": _of("FedNesterov", buffer_size=3, lr=0.1),\n'),
    ],
    "tests/rules/test_presets.py": [
        (
            '    ("ASGD",',
            '    ("FedNesterov", {"lr": 0.2}, Buffer(10), Nesterov(0.2), Constant(), "uniform"),\n',
        )
    ],
}
TOYS = {
    "an optimizer": (OPTIMIZER, OPTIMIZER_TESTS),
    "a row format": (FORMAT, FORMAT_TESTS),
    "a preset": (PRESET, PRESET_TESTS),
}
HASHES = Path("tests/hashes.json")


def run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    return done.stdout


def promised(page: str) -> dict[str, tuple[int, int]]:
    """Return from the page's table, for each toy, the number of files in the package and in tests."""
    text = Path(page).read_text(encoding="utf-8")
    rows = re.findall(r"^\| (an? [a-z ]+) \|.*\| (\d+) \| (\d+) \|$", text, re.MULTILINE)
    return {what: (int(files), int(tests)) for what, files, tests in rows}


def add(edits: Edits) -> int:
    for name, changes in edits.items():
        text = Path(name).read_text(encoding="utf-8")
        for before, added in changes:
            if text.count(before) != 1:
                sys.exit(f"{name}: {before!r} is there {text.count(before)} times")
            text = text.replace(before, added + before)
        Path(name).write_text(text, encoding="utf-8")
    return len(edits)


def check(build: str, *chosen: tuple[str, str]) -> None:
    """Compile, and run tests. ``chosen``: pairs of a test file, and a word that the names of its tests must contain."""
    run("cmake", "--build", build)
    for tests, word in chosen:
        said = run(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", tests, "-k", word)
        print(f"{tests} {word}: {re.findall(r'[0-9]+ passed', said)[-1]}")


def main(build: str) -> None:
    counted = {what: (add(source), add(tests)) for what, (source, tests) in TOYS.items() if source is not FORMAT}
    check(
        build,
        ("tests/ops/test_step.py", "toy"),
        ("tests/rules/test_presets.py", "Nesterov"),
        ("tests/fuzz/test_beside.py", "test_servers"),
        ("tests/test_registry.py", ""),
        ("tests/docs/test_snippets.py", "Toy"),
        ("tests/docs/test_api_pages.py", ""),
    )
    before = json.loads(HASHES.read_text(encoding="utf-8"))
    run(sys.executable, "tests/test_same_bits.py", "--write")
    after = json.loads(HASHES.read_text(encoding="utf-8"))
    if after.pop("FedNesterov", None) is None or after != before:
        sys.exit("the toys changed bits of what was there, or have none of their own")
    counted["a row format"] = (add(FORMAT), add(FORMAT_TESTS))
    promises = promised("CONTRIBUTING.md")
    if (said := {what: promises.get(what) for what in counted}) != counted:
        sys.exit(f"CONTRIBUTING.md promises {said}, and it takes {counted} files")
    print(f"files of the package and of tests: {counted}")


if __name__ == "__main__":
    main(sys.argv[1])
