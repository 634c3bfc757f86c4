from beartype import BeartypeConf, beartype

# named in pyproject.toml: jaxtyping's option takes several packages only without parentheses
typechecked = beartype(conf=BeartypeConf(is_pep484_tower=True))
