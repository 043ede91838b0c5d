package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/muster-rl/muster/spec"
)

// mappingCommand reads a device_mapping for those who have to know its ids before there is a
// head to ask, so that there is one parser.
func mappingCommand() *cobra.Command {
	return &cobra.Command{
		Use: "mapping TEXT", Short: "The ids that a device_mapping names; asked by the SDK", Hidden: true,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			ids, err := spec.ParseMapping(args[0])
			if err != nil {
				return err
			}
			for _, id := range ids {
				fmt.Fprintln(cmd.OutOrStdout(), id)
			}
			return nil
		},
	}
}
