package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/muster-rl/muster/node"
	"github.com/muster-rl/muster/node/course"
	nodeplace "github.com/muster-rl/muster/node/place"
)

type nodeOptions struct {
	rank, world int
	flags       nodeplace.Flags
	config      node.Config
	minNodes    int
	tokenFile   string
	python      string
	join, stop  time.Duration
	silence     time.Duration
	dryRun      bool
}

func nodeCommand() *cobra.Command {
	var o nodeOptions
	cmd := &cobra.Command{
		Use:   "node [FLAGS] -- COMMAND [ARGUMENT …]",
		Short: "Make a Ray cluster of all replicas of a job, and run a command on it",
		Long: `Make a Ray cluster of all replicas of a job, and run a command on it. Every
replica is started with the same line. Rank 0 starts Ray's head, waits until the
others have joined, and runs the command; the others join, and all end when the
command does, with its exit code.

Rank, number of replicas and the leader's address are found in the variables of
Beaker, Slurm, Kubernetes (Indexed Jobs, LeaderWorkerSets) and torchrun, or given
by flags; --dry-run shows what was found. The replicas need one secret in common,
in RAY_AUTH_TOKEN or in a file.`,
		Example: `  muster node -- python pipeline.py
  muster node --rank 1 --world 3 --leader 10.0.0.1 -- python pipeline.py
  srun --ntasks-per-node=1 muster node --ray-flag=--num-gpus=8 -- python pipeline.py
  muster node --dry-run -- python pipeline.py`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if cmd.Flags().Changed("rank") {
				o.flags.Rank = &o.rank
			}
			if cmd.Flags().Changed("world") {
				o.flags.World = &o.world
			}
			o.config.Command = args
			return runNode(o, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	f := cmd.Flags()
	f.SetInterspersed(false)
	f.IntVar(&o.rank, "rank", 0, "which replica this is, from 0")
	f.IntVar(&o.world, "world", 0, "how many replicas there are")
	f.StringVar(&o.flags.Leader, "leader", "", "name or address of the host of rank 0")
	f.StringVar(&o.flags.Service, "service", "", "headless service of a Kubernetes Indexed Job, from which the leader's name follows")
	f.IntVar(&o.config.Port, "port", node.DefaultPort, "port of Ray's head; the one after it is muster node's own")
	f.StringVar(&o.config.NodeIP, "node-ip", "", "address by which the others reach this host (default: that of the way to the leader)")
	f.IntVar(&o.minNodes, "min-nodes", 0, "start the command when so many nodes have joined (default: all)")
	f.DurationVar(&o.join, "join-timeout", node.DefaultJoin, "how long replicas may take to find each other")
	f.DurationVar(&o.stop, "stop-timeout", node.DefaultStop, "how long the command may take to end after a signal")
	f.DurationVar(&o.silence, "lost-after", node.DefaultSilence, "how long the leader may be silent before it is given up")
	f.StringVar(&o.tokenFile, "token-file", "", "file with the secret of the replicas (default: RAY_AUTH_TOKEN, RAY_AUTH_TOKEN_PATH, ~/.ray/auth_token)")
	f.StringVar(&o.config.Profile, "profile", "default", "variables for the network, several by commas: "+profileNames())
	f.StringArrayVar(&o.config.Set, "set", nil, "NAME=VALUE, a variable for Ray and the command; goes before the profile's")
	f.StringArrayVar(&o.config.RayFlags, "ray-flag", nil, "a flag for ray start, as --ray-flag=--num-gpus=8")
	f.StringVar(&o.config.TempDir, "temp-dir", "", "where Ray keeps its session on all nodes (default: a folder of its own, removed after an orderly end)")
	f.StringVar(&o.python, "python", "", "the interpreter that has Ray (default: that of the ray program, then as for muster run)")
	f.BoolVar(&o.dryRun, "dry-run", false, "show what was found and what would be done")
	f.BoolVar(&o.config.JSON, "json", false, "tell how it goes in lines of JSON, for programs")
	return cmd
}

func keeperCommand() *cobra.Command {
	return &cobra.Command{
		Use: "keeper", Short: "What keeps Ray on one replica; started by muster node", Hidden: true, Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error { return coded(node.Keeper()) },
	}
}

func profileNames() string {
	var names []string
	for _, p := range nodeplace.Profiles {
		names = append(names, p.Name)
	}
	return strings.Join(names, ", ")
}

// runNode finds out all that can be known before anything is started.
func runNode(o nodeOptions, out, errs io.Writer) error {
	c, tokenFrom, err := nodeConfig(o)
	voice := node.NewVoice(errs, c.JSON, c.Place.Rank)
	if err != nil {
		if !c.JSON {
			return &exitError{exitUsage, err}
		}
		voice.End(exitUsage, err.Error())
		return &exitError{code: exitUsage}
	}
	found := nodeFound(c, tokenFrom)
	if o.dryRun {
		return node.DryRun(context.Background(), out, c, found)
	}
	for _, line := range found {
		voice.Say("found", line, nil)
	}
	return coded(node.Front(c, voice))
}

func nodeConfig(o nodeOptions) (node.Config, string, error) {
	c := o.config
	host, _ := os.Hostname()
	hosts, _ := os.ReadFile("/etc/hosts")
	var err error
	c.Place, err = nodeplace.Find(nodeplace.Input{Flags: o.flags, Env: os.Getenv, Host: host, Domain: node.Domain(host, string(hosts))})
	if err != nil {
		return c, "", err
	}
	c.Need = c.Place.World
	if o.minNodes != 0 {
		c.Need = o.minNodes
	}
	token, from, err := node.Token(o.tokenFile, os.Getenv)
	c.Token = token
	ray, wrong := node.RayCommand(o.python, func() (string, error) { return interpreter("") })
	c.Ray = ray
	_, unset := nodeplace.Settings(c.Profile, "", c.Set, os.Getenv)
	errs := []error{err, node.CheckPorts(c.Port, os.Getenv), node.CheckRayFlags(c.RayFlags), unset, wrong}
	if err == nil {
		errs = append(errs, node.CheckToken(token, os.Getenv("RAY_AUTH_MODE"), c.Place.World))
	}
	switch {
	case c.Need < 1 || c.Need > c.Place.World:
		errs = append(errs, fmt.Errorf("--min-nodes %d is not one of 1 to %d, the number of replicas", c.Need, c.Place.World))
	case o.join <= 0 || o.stop < 0 || o.silence <= 0:
		errs = append(errs, errors.New("--join-timeout, --stop-timeout and --lost-after are times, as 90s or 10m"))
	}
	if c.Place.Rank == 0 {
		errs = append(errs, checkCommand(c.Command))
	}
	if c.NodeIP != "" {
		errs = append(errs, node.CheckNodeIP(c.NodeIP))
	}
	c.Limits = course.Limits{Join: o.join, Stop: o.stop, Farewell: node.DefaultFarewell, Silence: o.silence, Refused: node.DefaultRefused}
	if c.Token == "" { // one replica alone
		c.Token, from = node.NewToken(), "made for this run"
	}
	return c, from, errors.Join(errs...)
}

func checkCommand(command []string) error {
	if len(command) == 0 {
		return errors.New("there is no command: muster node [FLAGS] -- COMMAND [ARGUMENT …]")
	}
	if _, err := exec.LookPath(command[0]); err != nil {
		return fmt.Errorf("%s is no program that can be run", shown(command[0]))
	}
	return nil
}

// nodeFound says what was found and where.
func nodeFound(c node.Config, tokenFrom string) []string {
	p := c.Place
	leader := shown(p.Leader)
	if leader == "" {
		leader = "this host"
	}
	lines := []string{
		fmt.Sprintf("rank %d (%s) of %d (%s), leader %s (%s), token from %s", p.Rank, p.RankFrom, p.World, p.WorldFrom, leader, p.LeaderFrom, tokenFrom),
	}
	return append(lines, p.Notes...)
}
