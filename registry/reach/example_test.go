package reach_test

import (
	"fmt"

	"github.com/fairlead-proxy/fairlead/registry/reach"
)

// The zero Rules refuse addresses of this machine and of the cloud's metadata, in any notation.
func ExampleRules_Refusal() {
	var rules reach.Rules
	for _, host := range []string{"10.0.0.7", "127.0.0.1", "169.254.169.254", "::ffff:127.0.0.1", "localhost", "0x7f000001"} {
		fmt.Printf("%s: %q\n", host, rules.Refusal(host, 443))
	}
	// Output:
	// 10.0.0.7: ""
	// 127.0.0.1: "127.0.0.1 is a loopback address"
	// 169.254.169.254: "169.254.169.254 is a link-local address"
	// ::ffff:127.0.0.1: "127.0.0.1 is a loopback address"
	// localhost: "localhost is a loopback name"
	// 0x7f000001: "0x7f000001 is a number, not a DNS name"
}
