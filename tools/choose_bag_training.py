#!/usr/bin/env python3
"""Compares ways of training on a bag by cross-validation on the episodes to learn from; the held-out ones stay unseen.

python tools/choose_bag_training.py BAG --params FILE [--steps 200 400] [--augmentations light medium strong]
"""

from __future__ import annotations

import argparse
import itertools
import json
from dataclasses import replace
from pathlib import Path

import torch

from phyai_ros.parameters import build_settings
from phyai_ros.replay.bag import Bag
from phyai_ros.replay.params_file import read_params_file
from phyai_ros.replay.train_bag import AUGMENTATIONS, BagTraining, open_episodes, validate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bag", type=Path)
    parser.add_argument("--params", type=Path, required=True)
    parser.add_argument("--held-out", type=int, default=5)
    parser.add_argument("--steps", type=int, nargs="+", default=[200, 400])
    parser.add_argument("--augmentations", nargs="+", default=list(AUGMENTATIONS), choices=list(AUGMENTATIONS))
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    settings, base = build_settings(read_params_file(given.params)), BagTraining(held_out=given.held_out)
    with Bag(given.bag) as bag:
        shown, taught, key = open_episodes(bag, settings, given.held_out)
    print(f"{len(taught)} episodes, {base.folds} folds: error / error of holding still")
    ratios = {}
    for augmentation, steps in itertools.product(given.augmentations, given.steps):
        config = replace(base, augmentation=augmentation, steps=steps, fold_steps=steps)
        ratios[f"{augmentation}, {steps} steps"] = validate(taught, shown, key, config, lambda step, loss: None).ratio
        print(f"{augmentation:8} {steps:5} steps  {list(ratios.values())[-1]:.3f}", flush=True)
    print(f"best: {min(ratios, key=ratios.__getitem__)}")
    if given.json is not None:
        given.json.write_text(json.dumps(ratios, indent=1) + "\n")


if __name__ == "__main__":
    main()
