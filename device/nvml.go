package device

import (
	"context"
	_ "embed" // nvml.py
	"encoding/json"
	"fmt"
)

//go:embed nvml.py
var nvmlScript string

// nvmlAnswer is what nvml.py prints.
type nvmlAnswer struct {
	GPUs    []gpu  `json:"gpus"`
	Refused string `json:"refused"`
	Missing string `json:"missing"`
}

// askNVML has Python load the library and ask it. -I and -S keep out whatever
// the user's environment would have it import first.
func askNVML(ctx context.Context, m Machine) ([]gpu, error) {
	pythons := []string{"python3", "python"}
	if m.Python != "" {
		pythons = []string{m.Python, "python3"}
	}
	why := ""
	for _, python := range pythons {
		out, err := m.Run(ctx, python, "-I", "-S", "-c", nvmlScript)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		var answer nvmlAnswer
		if err == nil {
			err = json.Unmarshal(out, &answer)
		}
		switch {
		case err != nil:
			why += fmt.Sprintf("%s: %v; ", python, err)
			continue
		case answer.Refused != "":
			return nil, fmt.Errorf("NVML: %s", answer.Refused)
		case answer.Missing != "":
			return nil, fmt.Errorf("%w: %s", errNotAsked, answer.Missing)
		}
		return answer.GPUs, nil
	}
	return nil, fmt.Errorf("%w: %s", errNotAsked, why)
}
