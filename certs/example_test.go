package certs_test

import (
	"crypto/x509"
	"fmt"
	"os"
	"path/filepath"

	"github.com/fairlead-proxy/fairlead/certs"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

// A store serves its pair and verifies clients as soon as it is made; with Run it follows changes of the files.
func ExampleNew() {
	clients := pki.NewCA("client CA")
	dir, err := os.MkdirTemp("", "certs")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	bundle := filepath.Join(dir, "ca.crt")
	if err := os.WriteFile(bundle, clients.PEM(), 0o600); err != nil {
		fmt.Println(err)
		return
	}
	store, err := certs.New(certs.Config{ClientCA: bundle})
	if err != nil {
		fmt.Println(err)
		return
	}
	jane := clients.Issue(pki.Leaf{CommonName: "jane"}).Certificate
	chains, err := store.Clients().VerifyUser([]*x509.Certificate{jane})
	fmt.Println(len(chains), err)
	// Output: 1 <nil>
}
