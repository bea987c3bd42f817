"""What is published: `make dist` makes it, `.github/workflows/release.yml` sends it."""
