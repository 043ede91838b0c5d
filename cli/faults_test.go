package cli

import "testing"

func TestHeadFault(t *testing.T) {
	for text, want := range map[string]bool{"": false, "call:1": true, "call:1@1": true, "call:2@2": false} {
		fault, err := headFault(text, 1)
		if err != nil || (fault != nil) != want {
			t.Errorf("%q: %v, %v", text, fault != nil, err)
		}
		if fault != nil {
			fault("result") // another step
		}
	}
	for _, text := range []string{"call", "call:", "call:0", "call:x", "call:1@x"} {
		if _, err := headFault(text, 1); err == nil {
			t.Errorf("%q was taken", text)
		}
	}
}
