"""Writes what transformers' config classes set where a config says nothing, for the configs of the tests' small models.

    defaults.py check    whether tests/data/class-defaults.json says what the installed transformers does
    defaults.py write    writes that file

By model and field: the value that the config of this model has in transformers once the field is taken out.
`tests/model/loading/defaults.rs` demands that folio reads a config without the field as one with the value.
Needs transformers, without PyTorch.
"""

import json
import sys
import tarfile
from pathlib import Path

from transformers import CONFIG_MAPPING, PretrainedConfig, logging

DATA = Path(__file__).resolve().parent.parent / "data"
TABLE = DATA / "class-defaults.json"
ARCHIVES = ["golden", "golden-newer", "golden-encoders"]
# Not compared: what decides about the class, and tokens, which other files say for a model's own vocabulary.
LEFT_OUT = {"model_type", "architectures", "bos_token_id", "eos_token_id", "eod_token_id"}
# What is said about rotations in several ways is one field here.
ROTATIONS = {"rope_parameters", "rope_scaling", "rope_theta", "rope_local_base_freq"}
# Fields of every model, which say how it is stored, run or shown.
COMMON = set(PretrainedConfig().to_dict())


def configs():
    """The configs in the tests' archives, by the models' names."""
    for name in ARCHIVES:
        with tarfile.open(DATA / f"{name}.tar.xz") as archive:
            for member in archive:
                path = Path(member.name)
                if path.name != "config.json" or len(path.parts) != 3:
                    continue
                config = json.load(archive.extractfile(member))
                # Of a class that a repository brings along, transformers' namesake may differ.
                if "auto_map" not in config:
                    yield str(path.parent), config


def text_config(config):
    """The part of a config that describes the model of text."""
    return config.get("text_config", config)


def defaults(config):
    """What its class sets, by field."""
    own = CONFIG_MAPPING[config["model_type"]]
    usual = own().to_dict()
    found = {}
    names = usual.keys() - LEFT_OUT - COMMON | {"rope_parameters"}
    # Without a head of its own, a model has nothing to tie to its embedding.
    if not config.get("architectures", [""])[0].endswith("ForCausalLM"):
        names -= {"tie_word_embeddings"}
    for field in sorted(names):
        absent = ROTATIONS if field == "rope_parameters" else {field}
        rest = {name: value for name, value in config.items() if name not in absent}
        try:
            found[field] = own(**rest).to_dict().get(field)
        # Classes refuse configs that do not fit together, with many errors: a default of 32 layers beside four kinds
        # of layers. Lists of layers are for another number of them then.
        except Exception:
            if not isinstance(usual.get(field), list):
                found[field] = usual.get(field)
    # JSON has no infinity, with which some limit nothing.
    return {field: value for field, value in found.items() if "Infinity" not in json.dumps(value)}


def table():
    models = {name: text_config(config) for name, config in configs()}
    own_code = {name for name, config in models.items() if config["model_type"] not in CONFIG_MAPPING}
    print(f"transformers has no class of {', '.join(sorted(own_code))}", file=sys.stderr)
    lines = [f"{json.dumps(name)}: {json.dumps(defaults(models[name]))}" for name in sorted(models.keys() - own_code)]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def main():
    logging.set_verbosity_error()
    if sys.argv[1:] == ["write"]:
        TABLE.write_text(table())
    elif sys.argv[1:] != ["check"]:
        sys.exit(__doc__)
    elif table() != TABLE.read_text():
        sys.exit(f"{TABLE} differs from the installed transformers: `defaults.py write`, and look at the difference")


main()
