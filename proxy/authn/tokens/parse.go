package tokens

import (
	"bytes"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/apis/apiserver/install"
	"k8s.io/apiserver/pkg/apis/apiserver/validation"
	"k8s.io/apiserver/pkg/authentication/cel"
	"k8s.io/apiserver/pkg/authentication/user"
)

// parseTokens parses a file of kube-apiserver's --token-auth-file. It is stricter in two cases of
// which kube-apiserver only warns: an empty token and a repeated token are errors. No error holds a
// token.
func parseTokens(data []byte) (map[string]*user.DefaultInfo, error) {
	known := make(map[string]*user.DefaultInfo)
	r := csv.NewReader(bytes.NewReader(data))
	r.FieldsPerRecord = -1
	for {
		record, err := r.Read()
		if errors.Is(err, io.EOF) {
			return known, nil
		}
		if err != nil {
			return nil, fmt.Errorf("reading tokens: %w", err)
		}
		line, _ := r.FieldPos(0)
		switch {
		case len(record) < 3:
			return nil, fmt.Errorf("line %d has %d columns, want token, user, uid and perhaps groups", line, len(record))
		case record[0] == "":
			return nil, fmt.Errorf("line %d has an empty token", line)
		case record[1] == "":
			return nil, fmt.Errorf("line %d has no user", line)
		case known[record[0]] != nil:
			return nil, fmt.Errorf("line %d has the token of another line", line)
		}
		u := &user.DefaultInfo{Name: record[1], UID: record[2]}
		if len(record) > 3 {
			u.Groups = strings.Split(record[3], ",")
		}
		known[record[0]] = u
	}
}

// parseConfig parses and validates an AuthenticationConfiguration, by kube-apiserver's own rules.
func parseConfig(data []byte) (*apiserver.AuthenticationConfiguration, error) {
	scheme := runtime.NewScheme()
	install.Install(scheme)
	object, err := runtime.Decode(serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDecoder(), data)
	if err != nil {
		return nil, fmt.Errorf("reading authentication configuration: %w", err)
	}
	config, ok := object.(*apiserver.AuthenticationConfiguration)
	if !ok {
		return nil, fmt.Errorf("reading authentication configuration: it is %T", object)
	}
	if err := validation.ValidateAuthenticationConfiguration(cel.NewDefaultCompiler(), config, nil).ToAggregate(); err != nil {
		return nil, fmt.Errorf("validating authentication configuration: %w", err)
	}
	for i := range config.JWT {
		if config.JWT[i].Issuer.EgressSelectorType != "" {
			return nil, fmt.Errorf("jwt[%d].issuer.egressSelectorType: issuers are dialled directly here", i)
		}
	}
	return config, nil
}
