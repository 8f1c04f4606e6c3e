"""`python -m eval NAME ...`: run one evaluation."""

from eval.cli import main

main()
