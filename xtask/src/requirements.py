"""Prints what a wheel requires, one requirement a line, without the packages named on the command line.

    requirements.py WHEEL PACKAGE...
"""

import re
import sys
import zipfile
from email.parser import HeaderParser


def main() -> None:
    """Reads the metadata inside the wheel; optional extras are left out."""
    wheel, *without = sys.argv[1:]
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        headers = HeaderParser().parsestr(archive.read(metadata).decode())
    for requirement in headers.get_all("Requires-Dist", []):
        _, _, marker = requirement.partition(";")
        package = re.match(r"[A-Za-z0-9._-]+", requirement).group().lower()
        if "extra ==" not in marker and package not in without:
            print(requirement)


if __name__ == "__main__":
    main()
