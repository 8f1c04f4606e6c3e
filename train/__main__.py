"""`python -m train fit --config train/configs/NAME.yaml`."""

from train.cli import main

if __name__ == "__main__":
    main()
