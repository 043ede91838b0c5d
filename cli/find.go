package cli

import (
	"errors"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/muster-rl/muster/session"
	"github.com/muster-rl/muster/spec"
	"github.com/muster-rl/muster/wire"
)

// running is a session whose head is alive, and what it answered.
type running struct {
	session.Session
	status wire.Status
	err    error // why status is empty
}

// title names a session for people.
func (r running) title() string {
	if r.status.Script == "" {
		return "muster head"
	}
	return shown(filepath.Base(r.status.Script))
}

func sessionFlag(cmd *cobra.Command, name *string) {
	cmd.Flags().StringVar(name, "session", "", "which running script: a session's name or its start, a process id, or the script's name")
	_ = cmd.RegisterFlagCompletionFunc("session", completeSessions)
}

// look asks every head of this user at once what it does. Sessions that ended
// meanwhile are left out.
func look(bound time.Duration) []running { return lookFor(bound, wire.StatusRequest{}) }

func lookFor(bound time.Duration, what wire.StatusRequest) []running {
	sessions := session.List()
	all := make([]running, len(sessions))
	var asked sync.WaitGroup
	for i, s := range sessions {
		asked.Go(func() {
			all[i].Session = s
			c, err := dial(s, wire.RoleController, bound)
			if err == nil {
				err = c.ask("status", &what, &all[i].status)
				c.close()
			}
			all[i].err = err
		})
	}
	asked.Wait()
	return slices.DeleteFunc(all, func(r running) bool { return errors.Is(r.err, errEnded) })
}

// pick returns those of all that were asked for: by name, or all of them.
func pick(all []running, name string) ([]running, error) {
	if len(all) == 0 {
		return nil, nothing("no script of yours is running (looked in %s)", strings.Join(session.Places(), ", "))
	}
	if name == "" {
		return all, nil
	}
	var exact, near []running
	for _, r := range all {
		switch {
		case r.Name == name || strconv.Itoa(r.Pid) == name || r.status.Owner != 0 && strconv.Itoa(r.status.Owner) == name ||
			filepath.Base(r.status.Script) == name || r.status.Script == name:
			exact = append(exact, r)
		case strings.HasPrefix(r.Name, name):
			near = append(near, r)
		}
	}
	switch {
	case len(exact) > 0:
		return exact, nil
	case len(near) > 0:
		return near, nil
	}
	return nil, nothing("no running script is called %s; there are:\n%s", shown(name), choices(all))
}

// pickOne is pick where only one session will do.
func pickOne(all []running, name string) (running, error) {
	picked, err := pick(all, name)
	if err != nil {
		return running{}, err
	}
	if len(picked) > 1 {
		return running{}, usage("%d scripts are running; choose one with --session NAME:\n%s", len(picked), choices(picked))
	}
	return picked[0], picked[0].err
}

// pickCluster finds the one session that has a cluster.
func pickCluster(all []running, name, cluster string) (running, wire.ClusterInfo, error) {
	picked, err := pick(all, name)
	if err != nil {
		return running{}, wire.ClusterInfo{}, err
	}
	var with []running
	var info wire.ClusterInfo
	var names []string
	for _, r := range picked {
		for _, cl := range r.status.Clusters {
			names = append(names, cl.Name)
			if cl.Name == cluster {
				with, info = append(with, r), cl
			}
		}
	}
	switch {
	case len(with) > 1:
		return running{}, info, usage("%d scripts have a cluster %s; choose one with --session NAME:\n%s", len(with), cluster, choices(with))
	case len(with) == 1:
		return with[0], info, nil
	}
	for _, r := range picked {
		if r.err != nil { // it may be there
			return running{}, info, r.err
		}
	}
	return running{}, info, noSuch("cluster", cluster, names)
}

// noSuch tells that a name is not there, and what may have been meant.
func noSuch(what, name string, names []string) error {
	slices.Sort(names)
	names = slices.Compact(names)
	near := spec.NearestName(name, names)
	switch {
	case near != "":
		return nothing("there is no %s %s; did you mean %s?", what, shown(name), near)
	case len(names) == 0:
		return nothing("there is no %s %s; there are no %ss yet", what, shown(name), what)
	case len(names) == 1:
		return nothing("there is no %s %s; there is %s", what, shown(name), names[0])
	}
	return nothing("there is no %s %s; there are %s", what, shown(name), listed(names, 20))
}

// choices lists sessions to choose from.
func choices(all []running) string {
	rows := make([][]string, 0, len(all))
	for _, r := range all {
		row := []string{r.Name, r.title(), "head " + strconv.Itoa(r.Pid)}
		if r.err != nil {
			row[1] = "does not answer"
		} else {
			if r.status.Owner != 0 {
				row[2] = "process " + strconv.Itoa(r.status.Owner)
			}
			var names []string
			for _, cl := range r.status.Clusters {
				names = append(names, cl.Name)
			}
			row = append(row, "up "+span(r.status.UpSec), listed(names, 4))
		}
		rows = append(rows, row)
	}
	return strings.TrimRight(table("  ", rows), "\n")
}
