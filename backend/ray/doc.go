// Package ray is the backend of a Ray cluster: pools are placement groups, and an
// agent on another node is a warden that an actor started there. The machine of
// the head is a node of Ray's too; its agent is a local one.
//
// All that is done in Ray is done by the bridge (python/muster/_ray), a process in
// Python that this package starts and asks by lines of JSON. It listens in the
// session's folder and outlives a head that is killed, for the grace and as long
// as the script lives: the next head dials it and finds agents and groups again.
// When the bridge ends, Ray ends its actors and removes its groups.
//
// It never speaks to an agent, and knows nothing of clusters and calls.
package ray
