package main

import (
	"fmt"
	"net"
	"strings"

	"github.com/fairlead-proxy/fairlead/cmd/cli"
)

// checkNames refuses --serving-names that no client could verify, such as URLs.
func checkNames(names []string) error {
	for _, name := range names {
		if name == "" || net.ParseIP(name) == nil && strings.ContainsAny(name, ":/[ ") {
			return cli.Usage(fmt.Errorf("--serving-names: %q is neither a DNS name nor an IP address: give it without scheme, port and path", name))
		}
	}
	return nil
}
