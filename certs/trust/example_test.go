package trust_test

import (
	"crypto/x509"
	"errors"
	"fmt"

	"github.com/fairlead-proxy/fairlead/certs/trust"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

// VerifyChain verifies a server's chain with a bundle and a name, as a handshake does.
func ExampleVerifyChain() {
	ca := pki.NewCA("widgets CA")
	chain := []*x509.Certificate{ca.Issue(pki.Leaf{CommonName: "widgets", Names: []string{"widgets.default.svc"}}).Certificate}

	root, err := trust.VerifyChain(ca.PEM(), "widgets.default.svc", chain)
	fmt.Println(root.Subject.CommonName, err)

	_, err = trust.VerifyChain(pki.NewCA("another CA").PEM(), "widgets.default.svc", chain)
	var refused *trust.Error
	fmt.Println(errors.As(err, &refused), refused.Reason())
	_, err = trust.VerifyChain(ca.PEM(), "gadgets.default.svc", chain)
	fmt.Println(errors.As(err, &refused), refused.Reason())
	// Output:
	// widgets CA <nil>
	// true UnknownAuthority
	// true WrongServerName
}
