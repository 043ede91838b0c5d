package cli

import (
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// completeBound is short: someone holds the tab key.
const completeBound = time.Second

// completeClusters offers the clusters of running scripts, once or for every
// argument; workers too as soon as something is typed.
func completeClusters(once bool) cobra.CompletionFunc {
	return func(_ *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
		if once && len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		var names []string
		for _, r := range look(completeBound) {
			for _, cl := range r.status.Clusters {
				if strings.HasPrefix(cl.Name, typed) {
					names = append(names, cobra.CompletionWithDesc(cl.Name, count(len(cl.Workers), "worker")+" of "+r.title()))
				}
				for _, w := range cl.Workers {
					if !once && typed != "" && len(typed) > len(cl.Name) && strings.HasPrefix(w.Name, typed) {
						names = append(names, w.Name)
					}
				}
			}
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}

func completeSessions(_ *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	var names []string
	for _, r := range look(completeBound) {
		names = append(names, cobra.CompletionWithDesc(r.Name, r.title()))
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// completeFiles offers files that end so, for the first argument only.
func completeFiles(ends ...string) cobra.CompletionFunc {
	return func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveDefault
		}
		return ends, cobra.ShellCompDirectiveFilterFileExt
	}
}
