package cli

import (
	"fmt"
	"runtime"

	"github.com/spf13/cobra"

	"github.com/muster-rl/muster/wire"
)

func versionCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if asJSON {
				return printJSON(cmd.OutOrStdout(), struct {
					Release  string `json:"release"`
					Protocol int    `json:"protocol"`
					Platform string `json:"platform"`
					Go       string `json:"go"`
				}{wire.Release, wire.Version, runtime.GOOS + "/" + runtime.GOARCH, runtime.Version()})
			}
			fmt.Fprintf(cmd.OutOrStdout(), "muster %s, protocol %d, %s/%s, built with %s\n",
				wire.Release, wire.Version, runtime.GOOS, runtime.GOARCH, runtime.Version())
			return nil
		},
	}
	jsonFlag(cmd, &asJSON)
	return cmd
}
