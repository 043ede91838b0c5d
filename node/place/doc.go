// Package place finds out where a replica stands: its rank, how many replicas
// there are and where the leader is, from flags and from the variables that
// schedulers set, each with the name of where it came from. It also says which
// variables of NCCL and Gloo a profile sets.
//
// It is pure: the environment, the host's name and its interface are given to
// it. It never looks a name up, and it never guesses: what is missing or
// contradicts itself is an error that names the variables.
package place
