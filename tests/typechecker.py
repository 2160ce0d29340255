"""The runtime type checker of the tests: beartype, with int accepted where float is annotated (PEP 484)."""

from beartype import BeartypeConf, beartype

check = beartype(conf=BeartypeConf(is_pep484_tower=True))
