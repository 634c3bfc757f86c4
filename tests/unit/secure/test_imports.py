"""What a party imports, seen from a fresh interpreter."""

import subprocess
import sys


def test_a_party_does_without_scipy():
    code = "import sys; import mpcvit.secure.parties.party; print('scipy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
