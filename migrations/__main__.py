"""`python -m migrations`: brings the database at RATCHET_DATABASE_URL to the newest revision, as its owner.

`ratchet up` does this by itself; this is for deployments where the services are started apart.
"""

import os
import sys

from migrations.run import migrate
from ratchet.errors import ConfigError, RatchetError


def main() -> None:
    """Migrates, or says in one line why not (exit code 2)."""
    try:
        url = os.environ.get("RATCHET_DATABASE_URL")
        if not url:
            raise ConfigError("RATCHET_DATABASE_URL: set it to the address of the role ratchet_owner")
        migrate(url)
    except RatchetError as error:
        sys.stderr.write(f"migrations: {error}\n")
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
