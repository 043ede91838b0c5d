// Package device finds the accelerators of the machine it runs on, as far as
// this process may use them, and makes up virtual ones.
//
// Each kind of accelerator is a Finder; Find asks them in turn. Finders see the
// machine only through Machine, so tests can make one up. The package opens no
// device and loads no driver's library: whoever asks stays safe to fork.
package device
