// Package secure makes the certificates of one session, and what is needed to
// speak TLS by them. The head is the authority: it makes a key when it first
// listens beyond its own machine, and signs a certificate for each node that
// has proved itself by its token.
//
//	who            proves itself by               trusts
//	head           a certificate of its own CA    a node's token
//	agent, joining its token, inside TLS          the CA by its pin, which came with the token
//	agent, later   a certificate of its node      the CA, and the name of the node it wants
//
// All of it is TLS 1.3. Certificates have no end of their own: keys live in
// memory and in the sealed journal, and go with the session.
//
// The package does no I/O of its own and imports nothing of Muster but spec.
package secure
