package certs_test

import (
	"crypto/x509"
	"fmt"

	"github.com/fairlead-proxy/fairlead/certs"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

// A store serves its pair and verifies clients from the moment it is made; Run makes it follow the files.
func ExampleNew() {
	clients := pki.NewCA("client CA")
	store, err := certs.New(certs.Config{ClientCA: certs.Source{Inline: clients.PEM()}})
	if err != nil {
		fmt.Println(err)
		return
	}
	jane := clients.Issue(pki.Leaf{CommonName: "jane"}).Certificate
	chains, err := store.Clients().VerifyUser([]*x509.Certificate{jane})
	fmt.Println(len(chains), err)
	// Output: 1 <nil>
}
