// Command muster runs Muster's head, its agents, and users' scripts.
package main

import (
	"os"

	"github.com/muster-rl/muster/cli"
)

func main() { os.Exit(cli.Main(os.Args[1:])) }
