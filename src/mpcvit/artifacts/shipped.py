"""TOML files that come with the package, and are known by their bare names too."""

from pathlib import Path

from mpcvit.errors import UserError, nearest

PROFILES = Path(__file__).parent / "profiles"
CONFIGS = Path(__file__).parents[1] / "configs"


def shipped_names(folder: Path) -> list[str]:
    return sorted(path.stem for path in folder.glob("*.toml"))


def find_shipped(path: Path, folder: Path, what: str) -> Path:
    """Return a user's file if it exists, else the package's: NAME, NAME.toml or FOLDER/NAME.toml.

    >>> find_shipped(Path("digits"), CONFIGS, "configuration").name
    'digits.toml'
    """
    if path.is_file():
        return path
    if path.is_dir() and path.suffix == ".toml":
        raise UserError(f"{path} is a folder, but a {what} is a TOML file")
    name = path.stem if path.suffix == ".toml" else path.name
    if path in (Path(name), Path(f"{name}.toml"), Path(folder.name) / f"{name}.toml"):
        shipped = folder / f"{name}.toml"
        if shipped.is_file():
            return shipped
        raise UserError(
            f"there is no {what} '{path}', and the package has none of that name; "
            f"{nearest(name, shipped_names(folder))}"
        )
    raise UserError(f"there is no {what} {path}")
