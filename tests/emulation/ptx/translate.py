"""Translate the PTX of one CUDA file to C++ that runs on tests/emulation: translate.py FILE.ptx OUT.cpp.

Every kernel becomes a function of its parameters' bytes, every instruction a statement, every register a uint64_t that
holds its bits. An instruction or a form of one that is not known here ends the translation: none is passed over.

Some instructions get a second, wrong form, which runs if FASTAGG_PLANT=FILE.ptx:KIND:NUMBER is in the environment, so
that a test can check that it finds such errors. The kinds, and what runs instead:

    mask     and with a constant: without the constant's lowest bit
    fused    an addition of a product: one fused operation, with one rounding
    narrow   a load from global memory: half as many bytes, the rest zero
    lane     a shuffle: from the lane's own value, or from the lane after the one that is meant

Barriers and fences are numbered in a file's order, and ThreadSanitizer finds those that are dropped: FILE.ptx:NUMBER
(race_detector.h).
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

TYPES = {
    "pred": "bool", "f32": "float", "f64": "double",
    **{f"{kind}{bits}": f"{'int' if kind == 's' else 'uint'}{bits}_t" for kind in "usb" for bits in (8, 16, 32, 64)},
}  # fmt: skip
COMPARE = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
COMPARE |= {"lo": "<", "ls": "<=", "hi": ">", "hs": ">="}
ARITHMETIC = {"add": "+", "sub": "-", "mul": "*", "div": "/", "rem": "%", "and": "&", "or": "|", "xor": "^"}
SPECIAL = {"%tid.x": "threadIdx.x", "%ctaid.x": "blockIdx.x", "%ntid.x": "blockDim.x", "%nctaid.x": "gridDim.x"}
SPECIAL |= {"%laneid": "unsigned(emulation::lane())"}
ROUNDED = {"rni": "nearbyint", "rzi": "trunc", "rmi": "floor", "rpi": "ceil"}
SPACES = {"global", "shared", "local", "param"}
CACHING = {"wb", "cg", "nc", "volatile"}  # how a load or store is cached is not seen by one that waits for it
KINDS = ("mask", "fused", "narrow", "lane")
PLANTED_IN_A_KERNEL = 3  # of every kind: the first, one in the middle, the last


def size(kind: str) -> int:
    return 1 if kind == "pred" else int(kind[1:]) // 8


def split(text: str) -> list[str]:
    """Split at the commas that are in no bracket."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "{[(") - (letter in "}])")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts if part.strip()]


class Kernel:
    """One kernel, while it is translated."""

    def __init__(self, number: int, name: str, parameters: str, shared: dict[str, tuple[int, int]]) -> None:
        self.number, self.name, self.parameters, self.bytes = number, name, {}, 0
        for each in split(parameters):
            found = re.fullmatch(
                r"\.param (?:\.align (\d+) )?\.(\w+) (?:\.ptr \.align \d+ )?([\w$]+)(?:\[(\d+)\])?", each
            )
            assert found, each
            align, wide = int(found[1] or size(found[2])), size(found[2]) * int(found[4] or 1)
            self.bytes = -(-self.bytes // align) * align
            self.parameters[found[3]] = self.bytes
            self.bytes += wide
        self.known_shared, self.shared, self.shared_bytes = shared, {}, 0
        self.local: set[str] = set()
        self.statements: list[str | tuple[str, str, str]] = []  # a tuple: the kind of a plant, right, wrong
        self.products: dict[str, tuple[str, str, str]] = {}  # by register, in this stretch without jumps

    # -- operands -----------------------------------------------------------------------------------------------

    def shared_at(self, name: str) -> int:
        """Where a shared variable lies in the kernel's shared memory, which holds what it names and no more."""
        if name not in self.shared:
            align, wide = self.known_shared[name]
            self.shared[name] = -(-self.shared_bytes // align) * align
            self.shared_bytes = self.shared[name] + wide
        return self.shared[name]

    def bits(self, text: str) -> str:
        """The operand's bits."""
        if text.startswith("!"):
            return f"!{self.bits(text[1:])}"
        if text in SPECIAL:
            return f"uint64_t({SPECIAL[text]})"
        if text.startswith("%"):
            return register(text)
        if re.fullmatch(r"0[fF][0-9a-fA-F]{8}|0[dD][0-9a-fA-F]{16}", text):
            return f"0x{text[2:]}ull"
        if re.fullmatch(r"-?\d+U?", text):
            return f"0x{int(text.rstrip('U')) & (2**64 - 1):x}ull"
        if text in self.parameters:
            return f"uint64_t(parameters + {self.parameters[text]})"
        if text in self.known_shared:
            return f"{self.shared_at(text)}ull"
        if text in self.local:
            return f"uint64_t({text})"
        raise SystemExit(f"{self.name}: the operand {text}")

    def value(self, text: str, kind: str) -> str:
        return f"get<{TYPES[kind]}>({self.bits(text)})"

    def address(self, text: str, space: str, wide: int) -> str:
        found = re.fullmatch(r"\[([^+\]]+?)\s*(?:\+\s*(-?\d+))?\]", text)
        assert found, text
        base, offset = found[1], int(found[2] or 0)
        if base in self.parameters:
            return f"aligned(const_cast<char*>(parameters) + {self.parameters[base] + offset}, {wide})"
        if space == "shared":
            return f"in_shared(uint32_t({self.bits(base)} + {offset}), {wide}, SHARED_{self.number})"
        return f"aligned(reinterpret_cast<char*>({self.bits(base)} + ({offset}ll)), {wide})"

    # -- instructions --------------------------------------------------------------------------------------------

    def set(self, name: str, kind: str, value: str) -> str:
        return f"{register(name)} = put<{TYPES[kind]}>({value});"

    def instruction(self, code: str, given: list[str]) -> str | tuple[str, str, str]:
        name, *how = code.split(".")
        one = getattr(self, f"do_{name}", None)
        done = one(how, given) if one else None
        if done is None:
            raise SystemExit(f"{self.name}: {code} {given}")
        if given and name not in ("st", "bar", "bra", "membar"):
            product = (given[1], given[2], how[-1]) if name == "mul" and how[-1] in ("f32", "f64") else None
            for target in split(given[0].strip("{}").replace("|", ",")):
                self.products = {
                    held: factors for held, factors in self.products.items() if target not in (held, *factors)
                }
            if product and given[0] not in product:
                self.products[given[0]] = product
        return done

    def do_mov(self, how: list[str], given: list[str]) -> str:
        (kind,), (to, source) = how, given
        if to.startswith("{"):
            parts = split(to[1:-1])
            wide = 8 * size(kind) // len(parts)
            cut = f"({self.bits(source)} >> {{}}) & {2**wide - 1:#x}ull"
            kept = [(i, part) for i, part in enumerate(parts) if part != "tmp"]
            return " ".join(f"{register(part)} = {cut.format(i * wide)};" for i, part in kept)
        if source.startswith("{"):
            parts = split(source[1:-1])
            wide = 8 * size(kind) // len(parts)
            joined = (f"(({self.bits(part)} & {2**wide - 1:#x}ull) << {i * wide})" for i, part in enumerate(parts))
            return f"{register(to)} = {' | '.join(joined)};"
        return self.set(to, kind, self.value(source, kind))

    def do_add(self, how: list[str], given: list[str], name: str = "add") -> str | tuple[str, str, str] | None:
        kind, sign = how[-1], ARITHMETIC[name]
        a, b = (self.value(text, kind) for text in given[1:3])
        if kind[0] != "f":
            unsigned = f"uint{8 * size(kind)}_t"
            done = f"{TYPES[kind]}({unsigned}({a}) {sign} {unsigned}({b}))"
            return self.set(given[0], kind, done) if how == [kind] else None
        if how != ["rn", kind]:
            return None
        right = self.set(given[0], kind, f"{a} {sign} {b}")
        for product, other in ((given[1], given[2]), (given[2], given[1])):
            if name == "add" and product in self.products:
                x, y, _ = self.products[product]
                factors = f"{self.value(x, kind)}, {self.value(y, kind)}, {self.value(other, kind)}"
                return "fused", right, self.set(given[0], kind, f"std::fma({factors})")
        return right

    def do_sub(self, how: list[str], given: list[str]) -> str | tuple[str, str, str] | None:
        return self.do_add(how, given, "sub")

    def do_mul(self, how: list[str], given: list[str]) -> str | None:
        kind = how[-1]
        a, b = (self.value(text, kind) for text in given[1:3])
        if how == ["rn", kind]:
            return self.set(given[0], kind, f"{a} * {b}")
        product = f"({'Signed' if kind[0] == 's' else 'Unsigned'}128({a}) * {b})"
        if how == ["lo", kind]:
            return self.set(given[0], kind, f"{TYPES[kind]}(uint64_t({a}) * uint64_t({b}))")
        if how == ["wide", kind]:
            wide = f"{kind[0]}{16 * size(kind)}"
            return self.set(given[0], wide, f"{TYPES[wide]}{product}")
        if how == ["hi", kind]:
            return self.set(given[0], kind, f"{TYPES[kind]}({product} >> {8 * size(kind)})")
        return None

    def do_mad(self, how: list[str], given: list[str]) -> str | None:
        kind = how[-1]
        a, b, c = (f"uint64_t({self.value(text, kind)})" for text in given[1:4])
        return self.set(given[0], kind, f"{TYPES[kind]}({a} * {b} + {c})") if how[0] == "lo" else None

    def do_div(self, how: list[str], given: list[str], name: str = "div") -> str | None:
        kind = how[-1]
        if how != ([kind] if kind[0] != "f" else ["rn", kind]):
            return None
        a, b = (self.value(text, kind) for text in given[1:3])
        return self.set(given[0], kind, f"{TYPES[kind]}({a} {ARITHMETIC[name]} {b})")

    def do_rem(self, how: list[str], given: list[str]) -> str | None:
        return self.do_div(how, given, "rem")

    def do_fma(self, how: list[str], given: list[str]) -> str | None:
        values = ", ".join(self.value(text, how[-1]) for text in given[1:4])
        return self.set(given[0], how[-1], f"std::fma({values})") if how == ["rn", how[-1]] else None

    def do_sqrt(self, how: list[str], given: list[str]) -> str | None:
        return self.set(given[0], how[-1], f"std::sqrt({self.value(given[1], how[-1])})") if how[0] == "rn" else None

    def do_rcp(self, how: list[str], given: list[str]) -> str | None:
        return self.set(given[0], how[-1], f"1 / {self.value(given[1], how[-1])}") if how[0] == "rn" else None

    def do_abs(self, how: list[str], given: list[str]) -> str | None:
        kind = how[-1]
        return (
            self.set(given[0], kind, f"std::fabs({self.value(given[1], kind)})") if how in (["f32"], ["f64"]) else None
        )

    def do_neg(self, how: list[str], given: list[str]) -> str | None:
        kind, value = how[-1], self.value(given[1], how[-1])
        negative = f"-{value}" if kind[0] == "f" else f"{TYPES[kind]}(0 - uint64_t({value}))"
        return self.set(given[0], kind, negative) if how == [kind] else None

    def do_min(self, how: list[str], given: list[str], name: str = "min") -> str | None:
        kind = how[-1]
        a, b = (self.value(text, kind) for text in given[1:3])
        return self.set(given[0], kind, f"{name}imum({a}, {b})") if how == [kind] else None

    def do_max(self, how: list[str], given: list[str]) -> str | None:
        return self.do_min(how, given, "max")

    def do_and(self, how: list[str], given: list[str], name: str = "and") -> str | tuple[str, str, str]:
        (kind,) = how
        a, b = (self.value(text, kind) for text in given[1:3])
        right = self.set(given[0], kind, f"{TYPES[kind]}({a} {ARITHMETIC[name]} {b})")
        if name == "and" and re.fullmatch(r"-?\d+", given[2]):
            constant = int(given[2])
            return (
                "mask",
                right,
                self.set(given[0], kind, f"{TYPES[kind]}({a} & {self.value(str(constant & (constant - 1)), kind)})"),
            )
        return right

    def do_or(self, how: list[str], given: list[str]) -> str | tuple[str, str, str]:
        return self.do_and(how, given, "or")

    def do_xor(self, how: list[str], given: list[str]) -> str | tuple[str, str, str]:
        return self.do_and(how, given, "xor")

    def do_not(self, how: list[str], given: list[str]) -> str:
        (kind,) = how
        return self.set(given[0], kind, f"{TYPES[kind]}({'!' if kind == 'pred' else '~'}{self.value(given[1], kind)})")

    def do_shl(self, how: list[str], given: list[str]) -> str:
        (kind,) = how
        wide = f"b{8 * size(kind)}"
        return self.set(given[0], kind, f"left({self.value(given[1], wide)}, {self.value(given[2], 'u32')})")

    def do_shr(self, how: list[str], given: list[str]) -> str:
        (kind,) = how
        return self.set(given[0], kind, f"right({self.value(given[1], kind)}, {self.value(given[2], 'u32')})")

    def do_shf(self, how: list[str], given: list[str]) -> str | None:
        if how[1:] != ["wrap", "b32"]:
            return None
        values = ", ".join(self.value(text, "u32") for text in given[1:4])
        return self.set(given[0], "u32", f"funnel_{how[0]}({values})")

    def do_bfi(self, how: list[str], given: list[str]) -> str:
        (kind,) = how
        values = [self.value(text, kind) for text in given[1:3]] + [self.value(text, "u32") for text in given[3:5]]
        return self.set(given[0], kind, f"inserted({', '.join(values)})")

    def do_prmt(self, how: list[str], given: list[str]) -> str | None:
        values = ", ".join(self.value(text, "u32") for text in given[1:4])
        return self.set(given[0], "u32", f"permuted({values})") if how == ["b32"] else None

    def do_lop3(self, how: list[str], given: list[str]) -> str | None:
        values = ", ".join(self.value(text, "u32") for text in given[1:5])
        return self.set(given[0], "u32", f"by_table({values})") if how == ["b32"] else None

    def do_brev(self, how: list[str], given: list[str]) -> str | None:
        return self.set(given[0], "u32", f"reversed({self.value(given[1], 'u32')})") if how == ["b32"] else None

    def do_popc(self, how: list[str], given: list[str]) -> str:
        return self.set(given[0], "u32", f"__builtin_popcountll({self.value(given[1], how[-1])})")

    def do_bfind(self, how: list[str], given: list[str]) -> str | None:
        found = f"leading_zeros({self.value(given[1], 'u32')})"
        return self.set(given[0], "u32", found) if how == ["shiftamt", "u32"] else None

    def do_selp(self, how: list[str], given: list[str]) -> str:
        (kind,) = how
        a, b = (self.value(text, kind) for text in given[1:3])
        return self.set(given[0], kind, f"{self.bits(given[3])} ? {a} : {b}")

    def do_setp(self, how: list[str], given: list[str]) -> str | None:
        kind, test = how[-1], how[0]
        a, b = (self.value(text, kind) for text in given[1:3])
        unordered = f"(std::isnan({a}) || std::isnan({b}))"
        if test in ("num", "nan"):
            holds = unordered if test == "nan" else f"!{unordered}"
        elif kind[0] == "f" and test.endswith("u"):
            holds = f"({unordered} || {a} {COMPARE[test[:-1]]} {b})"
        else:  # C++'s != holds for a NaN, PTX's ne does not
            holds = f"({a} {COMPARE[test]} {b}{f' && !{unordered}' if kind[0] == 'f' and test == 'ne' else ''})"
        if len(how) == 3:
            joint = {"and": "&&", "or": "||", "xor": "!="}[how[1]]
            holds = f"({holds} {joint} {self.bits(given[3])})"
        to = given[0].split("|")
        if len(to) == 2 and len(how) == 3:
            return None
        return f"{register(to[0])} = {holds};" + (f" {register(to[1])} = !{register(to[0])};" if len(to) == 2 else "")

    def do_cvt(self, how: list[str], given: list[str]) -> str | None:
        *mode, to, source = how
        value = self.value(given[1], source)
        if to[0] == "f" and (mode in ([], ["rn"])):  # no mode: between equal types, or to a wider one
            return self.set(given[0], to, f"{TYPES[to]}({value})")
        if source[0] == "f":
            whole = f"std::{ROUNDED[mode[0]]}({value})"
            done = whole if to[0] == "f" else f"saturated<{TYPES[to]}>({whole})"
            return self.set(given[0], to, done) if len(mode) == 1 else None
        return self.set(given[0], to, f"{TYPES[to]}({value})") if not mode else None

    def do_cvta(self, how: list[str], given: list[str]) -> str | None:
        if how == ["shared", "u64"]:
            return f"{register(given[0])} = uint64_t(SHARED + {self.bits(given[1])});"
        if how in (["to", "global", "u64"], ["local", "u64"], ["to", "local", "u64"], ["global", "u64"]):
            return f"{register(given[0])} = {self.bits(given[1])};"
        return None

    def do_ld(self, how: list[str], given: list[str]) -> str | tuple[str, str, str] | None:
        return self.move(how, given[1], given[0], load=True)

    def do_st(self, how: list[str], given: list[str]) -> str | tuple[str, str, str] | None:
        return self.move(how, given[0], given[1], load=False)

    def move(self, how: list[str], memory: str, registers: str, load: bool) -> str | tuple[str, str, str] | None:
        *words, kind = how
        count = next((int(word[1:]) for word in words if word in ("v2", "v4")), 1)
        if set(words) - SPACES - CACHING - {"v2", "v4"}:
            return None
        space = next((word for word in words if word in SPACES), "")
        each = split(registers[1:-1]) if registers.startswith("{") else [registers]
        at = f"char* at = {self.address(memory, space, count * size(kind))};"
        if not load:
            done = [f"store<{TYPES[kind]}>(at + {i * size(kind)}, {self.value(r, kind)});" for i, r in enumerate(each)]
            return f"{{ {at} {' '.join(done)} }}"
        done = [f"{register(r)} = load<{TYPES[kind]}>(at + {i * size(kind)});" for i, r in enumerate(each)]
        right = f"{{ {at} {' '.join(done)} }}"
        if space != "global" or size(kind) == 1:
            return right
        done[-1] = f"{register(each[-1])} = load<uint{4 * size(kind)}_t>(at + {(len(each) - 1) * size(kind)});"
        return "narrow", right, f"{{ {at} {' '.join(done)} }}"

    def do_atom(self, how: list[str], given: list[str]) -> str | None:
        at = f"reinterpret_cast<unsigned*>({self.address(given[1], 'global', 4)})"
        added = f"emulation::add({at}, {self.value(given[2], 'u32')})"
        return self.set(given[0], "u32", added) if how == ["global", "add", "u32"] else None

    def do_membar(self, how: list[str], given: list[str]) -> str | None:
        return f"emulation::fence({self.place()});" if how == ["gl"] else None

    def do_griddepcontrol(self, how: list[str], given: list[str]) -> str | None:
        return ";" if how in (["wait"], ["launch_dependents"]) else None  # a launch is done before the next begins

    def do_bar(self, how: list[str], given: list[str]) -> str | None:
        if how == ["warp", "sync"] and given == ["-1"]:
            return f"emulation::sync_warp({self.place()});"
        if how == ["sync"] and given == ["0"]:
            return f"emulation::sync_block({self.place()});"
        return None

    def place(self) -> str:
        """A number for what orders threads, in the order of the file (race_detector.h)."""
        Kernel.places += 1
        return f"{{SOURCE, {Kernel.places - 1}}}"

    places = 0

    def do_shfl(self, how: list[str], given: list[str]) -> str | tuple[str, str, str] | None:
        if how[0] != "sync" or how[2:] != ["b32"] or how[1] not in ("down", "bfly", "idx"):
            return None
        to = given[0].split("|")
        value, lane, clamp, mask = (self.value(text, "u32") for text in given[1:5])
        inside = f" {register(to[1])} = inside;" if len(to) == 2 else ""
        forms = [
            f"{{ bool inside; {register(to[0])} = shuffle_{how[1]}({value}, {which}, {clamp}, {mask}, inside);"
            f"{inside} }}"
            for which in (lane, "0" if how[1] != "idx" else f"{lane} + 1")
        ]
        return "lane", forms[0], forms[1]

    def do_redux(self, how: list[str], given: list[str]) -> str | None:
        greatest = f"__reduce_max_sync({self.value(given[2], 'u32')}, {self.value(given[1], 'u32')})"
        return self.set(given[0], "u32", greatest) if how == ["sync", "max", "u32"] else None

    def do_vote(self, how: list[str], given: list[str]) -> str | None:
        ballot = f"__ballot_sync({self.value(given[2], 'u32')}, {self.bits(given[1])})"
        return self.set(given[0], "u32", ballot) if how == ["sync", "ballot", "b32"] else None

    def do_bra(self, how: list[str], given: list[str]) -> str:
        return f"goto {self.label(given[0])};"

    def do_ret(self, how: list[str], given: list[str]) -> str:
        return "return;"

    # -- the whole -----------------------------------------------------------------------------------------------

    def label(self, name: str) -> str:
        return name.replace("$", f"kernel_{self.number}_")

    def line(self, text: str) -> str | tuple[str, str, str] | None:
        if found := re.fullmatch(r"\.reg \.(\w+)\s+(%\w+)<(\d+)>;", text):
            names = ", ".join(f"{register(found[2])}{i} = 0" for i in range(int(found[3])))
            return f"{'bool' if found[1] == 'pred' else 'uint64_t'} {names};"
        if found := re.fullmatch(r"\.local \.align (\d+) \.b8 ([\w$]+)\[(\d+)\];", text):
            self.local.add(found[2])
            return f"alignas({found[1]}) char {found[2]}[{found[3]}];"
        if found := re.fullmatch(r"([\w$]+):", text):
            self.products.clear()
            return f"{self.label(found[1])}:;"
        if text.startswith((".pragma", ".shared")) or text in ("", "{", "}"):
            return None
        text = re.sub(r"\{ \.reg \.\w+ tmp; (.*;) \}", r"\1", text)  # one half of a register, the other to nowhere
        found = re.fullmatch(r"(?:@(!?)(%\w+)\s+)?([\w.:]+)\s*(.*?);", text)
        if not found:
            raise SystemExit(f"{self.name}: the line {text!r}")
        done = self.instruction(found[3], split(found[4]))
        if not found[2]:
            return done
        holds = f"if ({found[1]}{register(found[2])}) "
        return holds + f"{{ {done} }}" if isinstance(done, str) else (done[0], *(f"{holds}{{ {d} }}" for d in done[1:]))

    def translate(self, body: str, planted: dict[str, int]) -> str:
        self.statements = [done for text in body.split("\n") if (done := self.line(text.strip())) is not None]
        chosen: dict[int, str] = {}
        for which, kind in enumerate(KINDS):
            found = [i for i, each in enumerate(self.statements) if isinstance(each, tuple) and each[0] == kind]
            step = max(1, (len(found) - 1) // (PLANTED_IN_A_KERNEL - 1))
            for i in sorted({*found[::step][: PLANTED_IN_A_KERNEL - 1], *found[-1:]}):
                _, right, wrong = self.statements[i]
                chosen[i] = f"if (plant == {which * 1_000_000 + planted[kind]}) {{ {wrong} }} else {{ {right} }}"
                planted[kind] += 1
        lines = [chosen.get(i, each if isinstance(each, str) else each[1]) for i, each in enumerate(self.statements)]
        head = f"constexpr unsigned SHARED_{self.number} = {self.shared_bytes};\n"
        return (
            f"{head}void kernel_{self.number}(const char* parameters) {{  // {self.name}\n" + "\n".join(lines) + "\n}\n"
        )


def register(name: str) -> str:
    if not re.fullmatch(r"%\w+", name):
        raise SystemExit(f"no register: {name}")
    return "r_" + name[1:]


def main(source: Path, out: Path) -> None:
    text = re.sub(r"//[^\n]*", "", source.read_text())
    variables = re.findall(r"\.shared \.align (\d+) \.[bu](\d+) ([\w$]+)(?:\[(\d+)\])?;", text)
    shared = {name: (int(align), int(bits) // 8 * int(count or 1)) for align, bits, name, count in variables}
    entries = re.findall(r"\.entry ([\w$]+)\(\s*(.*?)\)\s*((?:\.\w+[^\n{]*\s*)*)\{\n(.*?)\n\}", text, re.S)
    assert len(entries) == text.count(".entry"), source
    kernels, planted = (
        [Kernel(i, entry[0], entry[1], shared) for i, entry in enumerate(entries)],
        dict.fromkeys(KINDS, 0),
    )
    bodies = [kernel.translate(entry[3], planted) for kernel, entry in zip(kernels, entries, strict=True)]
    most = max((kernel.shared_bytes for kernel in kernels), default=0)
    table = "\n".join(f'    {{"{k.name}", kernel_{k.number}, {k.bytes}}},' for k in kernels)
    kinds = ", ".join(f'"{kind}"' for kind in KINDS)
    out.write_text(
        '#include "machine.h"\n\nnamespace emulation::ptx {\nnamespace {\n\n'
        f'constexpr char SOURCE[] = "{source.name}";\n'
        f"int plant = -1;\nalignas(16) __shared__ char SHARED[{max(most, 16)}];\n"
        "char* in_shared(uint32_t at, unsigned wide, unsigned size) { return inside(SHARED, at, wide, size); }\n\n"
        + "\n".join(bodies)
        + f"\nconst Kernel kernels[] = {{\n{table}\n}};\n"
        f"const Registered registered({{kernels, {len(kernels)}, SOURCE, {{{kinds}}}, &plant}});\n\n"
        "}  // namespace\n}  // namespace emulation::ptx\n"
    )
    counts = ", ".join(f"{count} {kind}" for kind, count in planted.items() if count)
    print(f"{source.name}: {len(kernels)} kernels; can be planted: {counts}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
