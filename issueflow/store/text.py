"""How state is written for people to read: YAML that no reader misreads."""

import re
from io import StringIO
from typing import Any

PLAIN = re.compile(r"[A-Za-z./][A-Za-z0-9 ./_()-]*")
MISREAD = {"yes", "no", "on", "off", "y", "n", "true", "false", "null", "nan"}


def to_yaml(value: Any) -> str:
    """`value` as YAML for people: block style, lines never folded, every string that some reader misreads in quotes."""
    from ruamel.yaml import YAML
    from ruamel.yaml.representer import SafeRepresenter

    class Representer(SafeRepresenter):
        def represent_text(self, data: str) -> Any:
            plain = PLAIN.fullmatch(data) and data.lower() not in MISREAD and data == data.strip()
            return self.represent_scalar("tag:yaml.org,2002:str", data, style=None if plain else '"')

    Representer.add_representer(str, Representer.represent_text)
    writer = YAML(typ="safe", pure=True)
    writer.Representer = Representer
    writer.default_flow_style = False
    writer.width = 1_000_000  # folding changes long strings (a space after a backslash)
    writer.allow_unicode = True
    writer.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    out = StringIO()
    writer.dump(value, out)
    return out.getvalue()
