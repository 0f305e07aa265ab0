#!/usr/bin/env python3
"""Writes src/model/gguf/grids.rs: the points of ggml's grids, from the package gguf (0.19.0), as ranks of their values.

    pip install gguf==0.19.0 && python3 tests/data/gguf/make_grids.py | rustfmt > src/model/gguf/grids.rs
"""

from gguf import quants

# Name in Rust, class of the package, values in order, what a point is.
GRIDS = [
    ("IQ1", quants.IQ1_S, [-1, 0, 1], "eight weights of IQ1_S and IQ1_M: −1, 0, 1"),
    ("IQ2_XXS", quants.IQ2_XXS, [8, 25, 43], "eight weights of IQ2_XXS: 8, 25, 43"),
    ("IQ2_XS", quants.IQ2_XS, [8, 25, 43], "eight weights of IQ2_XS: 8, 25, 43"),
    ("IQ2_S", quants.IQ2_S, [8, 25, 43], "eight weights of IQ2_S: 8, 25, 43"),
    ("IQ3_XXS", quants.IQ3_XXS, [4, 12, 20, 28, 36, 44, 52, 62], "four weights of IQ3_XXS: 4, 12, 20, 28, 36, 44, 52, 62"),
    ("IQ3_S", quants.IQ3_S, [1, 3, 5, 7, 9, 11, 13, 15], "four weights of IQ3_S: 1, 3, 5, 7, 9, 11, 13, 15"),
]


def main() -> None:
    print("//! The grids of ggml's IQ types: points that a search found, which no formula gives. Generated from the Python package")
    print("//! gguf 0.19.0 (MIT licence) by `tests/data/gguf/make_grids.py`; each point is the ranks of its values, two bits each")
    print("//! from bit 0 on for eight weights, three bits each for four.")
    print()
    for name, kind, values, text in GRIDS:
        kind.init_grid()
        points = kind.grid.reshape(-1, kind.grid.shape[-1])
        bits = 16 // points.shape[1] if points.shape[1] == 8 else 3
        words = [sum(values.index(int(v)) << (bits * i) for i, v in enumerate(point)) for point in points]
        print(f"/// Points of {text}.")
        print("#[rustfmt::skip]")
        print(f"pub(super) const {name}: [u16; {len(words)}] = [")
        for at in range(0, len(words), 12):
            print("    " + " ".join(f"{word:#06x}," for word in words[at : at + 12]))
        print("];")
        print()


main()
