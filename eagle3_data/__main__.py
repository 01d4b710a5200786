"""`python -m eagle3_data` is the command `eagle3-data`."""

from eagle3_data.cli.app import main

main()
